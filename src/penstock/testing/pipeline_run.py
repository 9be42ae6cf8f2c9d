"""ps.testing.run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.api.pipeline import PipelineDefinition
from penstock.checkpoint.events import CheckpointRequested, RequestOutcome, StopRequested
from penstock.checkpoint.recovery import check_rename
from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, MonotonicTime, parse_duration
from penstock.errors import CheckpointAborted, HarnessError, RequestRefused, did_you_mean
from penstock.facts import Fact, JobStarted, WatermarkAdvanced
from penstock.graph.nodes import Graph
from penstock.handles import CheckpointId, check_savepoint_name
from penstock.observability.report import Report, ReportCollector
from penstock.settings import read_settings
from penstock.testing.clock import ManualClock
from penstock.testing.driver import JobUnderTest, SteppedAttempt
from penstock.testing.frames import Row
from penstock.testing.sources import End, Idle
from penstock.testing.substitute import StandIns

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self


# ----------------------------------------------------------------------------------------------------
# Asks a running job for a checkpoint or its end, and sees it through, whatever crashes and restarts come between.

_NUMBERS: Final = itertools.count(1)
_PATIENCE: Final = 500 * 86_400_000_000
"""Microseconds that a job may take to its end: what is due later than that would never come."""


def take_checkpoint(life: JobUnderTest, name: str | None, *, wait: bool) -> CheckpointId | None:
    """Have a checkpoint taken, pinned under a name if there is one; ``None`` if it is pending, or the job died of it.

    Raises:
        CheckpointAborted: it was aborted.
        RequestRefused: the name is taken.
        HarnessError: the job is dead, or the checkpoint never completes.
    """
    while True:
        request, number = f"test-{next(_NUMBERS)}", life.number

        def ask(_: SteppedAttempt, request: str = request) -> None:
            at, wall = life.clock.now(), life.clock.wall()
            asked = CheckpointRequested(at=at, wall=wall, request=request, name=name, owner="test")
            life.requests.submit(asked, lambda reply: life.answers.__setitem__(request, reply))

        life.move(ask)
        if life.number == number:
            break  # else it died and began again, and knows nothing of what was asked
    if not life.is_alive:
        return None
    answer = life.answers.get(request)
    if answer is None:
        if not wait:
            return None
        msg = f"the checkpoint does not complete: {_told(life.running)}"
        raise HarnessError(msg)
    if answer.answer is RequestOutcome.REFUSED:
        raise RequestRefused(answer.message)
    if answer.answer is not RequestOutcome.DONE:
        raise CheckpointAborted(answer.message)
    return answer.checkpoint


def stop_job(life: JobUnderTest) -> None:
    """Have the job stop in order.

    Raises:
        HarnessError: it is dead, or does not come to its end.
    """

    def ask(running: SteppedAttempt) -> None:
        at, wall = life.clock.now(), life.clock.wall()
        running.supervisor.request(StopRequested(at=at, wall=wall, request=f"test-{next(_NUMBERS)}"))

    until_over(life, "stop()", ask)


def restart_later(life: JobUnderTest, *, is_new: bool) -> None:
    """A restart is asked for while the job runs: it follows the crash that is armed.

    Raises:
        HarnessError: none is, one was asked for already, or a new version of the pipeline is to begin with it.
    """
    if life.point is None:
        msg = "the job runs, and no crash is armed: crash(), stop() or end() it first"
        raise HarnessError(msg)
    if life.restarts_then or is_new:
        why = "a new version begins when the job has died" if is_new else "the restart waits for the crash"
        msg = f"{why}: {life.point.story()}"
        raise HarnessError(msg)
    life.restarts_then = True


def until_over(life: JobUnderTest, what: str, ask: Callable[[SteppedAttempt], None]) -> None:
    """Ask each attempt for the end and let time pass until it has come, or the job is dead with no restart to follow.

    Raises:
        HarnessError: the job is dead, or does not come to its end.
    """
    asked, latest = -1, life.clock.now() + _PATIENCE
    while True:
        if life.number != asked:
            asked = life.number
            life.move(ask)
        if not life.is_alive:
            return
        if life.number != asked:
            continue  # it died and began again
        due = life.running.next_due
        if due is None or due > latest:
            msg = f"{what} does not come to its end: {_told(life.running)}"
            raise HarnessError(msg)
        life.move(lambda running, due=due: running.advance_to(due))  # type: ignore[misc]


def _told(running: SteppedAttempt) -> str:
    return "; ".join(f"'{task}' is {doing}" for task, doing in running.doing.items())


# ----------------------------------------------------------------------------------------------------
# What came out of a pipeline under test: rows by sink, watermarks, counters, facts. Moves nothing.

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ROLES: Final = ("source", "sink")
_LAST: Final = datetime.max.replace(tzinfo=timezone.utc)


class Outcome:
    """Reads what stand-ins and facts tell; sources, steps and sinks are addressed by their uid.

    Attributes:
        facts: everything that the runtime reported, in order.
    """

    def __init__(self, cast: StandIns) -> None:
        self.facts: list[Fact] = []
        self._cast = cast
        self._watermarks: dict[str, int] = {}

    def rows(self, uid: str, *columns: str) -> list[Row]:
        """Published rows of a sink as dictionaries; times are ``datetime`` in UTC.

        They come checkpoint by checkpoint, those of one checkpoint sorted by their columns from left to right.

        Args:
            uid: of the sink; side outputs are sinks like any other.
            columns: only these, in this order.

        Raises:
            HarnessError: there is no such sink or column.
        """
        return _chosen(self._cast.sink(uid).rows, columns, uid)

    def staged(self, uid: str, *columns: str) -> list[Row]:
        """Rows that a sink has written and not published, sorted: their checkpoint is not complete.

        Raises:
            HarnessError: there is no such sink or column.
        """
        return _chosen(self._cast.sink(uid).staged, columns, uid)

    def watermark(self, uid: str) -> datetime | None:
        """How far event time has come at a step or sink, in UTC.

        ``None`` before it has begun, ``datetime.max`` (in UTC) after its sources have ended.

        Raises:
            HarnessError: there is no such step or sink.
        """
        roles = self._cast.roles
        if roles.get(uid) not in ("step", "sink"):
            hint = did_you_mean(uid, roles, otherwise="there is no such step")
            if uid in roles:
                hint = ": a source has no watermark, ask a step or a sink"
            msg = f"no watermark of {uid!r}{hint}"
            raise HarnessError(msg)
        at = self._watermarks.get(uid, MIN_WATERMARK)
        if at in (MIN_WATERMARK, MAX_WATERMARK):
            return None if at == MIN_WATERMARK else _LAST
        return _EPOCH + timedelta(microseconds=at)

    def counters(self, uid: str) -> dict[str, int]:
        """What a step has counted (``late``, ``fired`` …), by name. Rows that were redone after a restart count again.

        Raises:
            HarnessError: there is no such step.
        """
        if uid not in self._cast.roles:
            hint = did_you_mean(uid, self._cast.roles, otherwise="there is no such step")
            msg = f"no counters of {uid!r}{hint}"
            raise HarnessError(msg)
        return {name: amount for (step, name), amount in self.report().counters.items() if step == uid}

    def report(self) -> Report:
        """The sums so far, as of :meth:`penstock.Job.report`."""
        named = {role: frozenset(uid for uid, of in self._cast.roles.items() if of == role) for role in _ROLES}
        tally = ReportCollector(sources=named["source"], sinks=named["sink"])
        for fact in self.facts:
            tally(fact)
        return tally.report()

    def _take(self, fact: Fact) -> None:
        """The listener of every attempt."""
        self.facts.append(fact)
        if isinstance(fact, JobStarted):
            self._watermarks.clear()  # each task announces what it was restored with
        elif isinstance(fact, WatermarkAdvanced):
            self._watermarks[fact.task] = fact.at


def _chosen(rows: list[Row], columns: Sequence[str], uid: str) -> list[Row]:
    if not columns:
        return rows
    for row in rows[:1]:
        for name in columns:
            if name not in row:
                hint = did_you_mean(name, row, otherwise=f"there are {', '.join(row)}")
                msg = f"sink {uid!r} has no column {name!r}{hint}"
                raise HarnessError(msg)
    return [{name: row[name] for name in columns} for row in rows]


# ----------------------------------------------------------------------------------------------------
# A user's pipeline under test: rows in, rows out, time by hand, crashes where the test says.
#
# Everything between the scripted sources and the collecting sinks is the product itself, with its log and its state in
# a temporary directory, stepped on the calling thread.

_SELDOM: Final = "1000 days"
"""Between periodic checkpoints unless the test asks for them: a test says itself when there is one."""


def run(
    pipeline: PipelineDefinition, spark: SparkSession, *, clock: ManualClock | None = None, **settings: object
) -> PipelineRun:
    """A pipeline to be tested, in a ``with`` block: its own function, unchanged, without what it reads and writes.

    Its sources are replaced by scripted ones of the same columns, its sinks by collecting ones; their uids stay.
    Nothing of the outside is touched, only tables of ``p.table`` are read. No thread is started and nothing waits:
    time stands still but for :meth:`PipelineRun.advance`, and what can be done is done when a method returns.

    Args:
        pipeline: what ``@ps.pipeline`` made.
        spark: a classic session; it is left as it was.
        clock: begins at 2026-01-01 00:00 UTC unless given.
        settings: as of :class:`penstock.Job`; the environment is not read, and periodic checkpoints are taken only if
            ``checkpoint_every`` is given.

    Raises:
        GraphError: the pipeline is refused.
        SettingsError: an unknown or impossible option.

    Example::

        def test_totals(spark):
            with ps.testing.run(orders, spark) as t:
                t.send("orders", [{"value": '{"user": "u1", "amount": 3.0, "at": "2026-01-01T00:00:10Z"}'}])
                t.checkpoint()
                t.crash(at="sink.published")
                t.restart()
                t.end()
                assert t.rows("totals-out", "user", "amount") == [{"user": "u1", "amount": 3.0}]
    """
    return PipelineRun(pipeline, spark, clock=clock or ManualClock(), settings=settings)


class PipelineRun(Outcome):
    """A pipeline under test. Made by :func:`run`; sources, steps and sinks are addressed by their uid.

    Attributes:
        clock: time of the job.
        facts: everything that the runtime reported, in order.
    """

    def __init__(
        self, pipeline: PipelineDefinition, spark: SparkSession, *, clock: ManualClock, settings: Mapping[str, object]
    ) -> None:
        super().__init__(StandIns())
        self.clock = clock
        self._pipeline = pipeline
        self._spark = spark
        self._settings = read_settings({"checkpoint_every": _SELDOM, **settings}, environment={})
        self._life = JobUnderTest(spark, self._settings, clock, self._take)

    def __enter__(self) -> Self:
        try:
            self._play(self._pipeline)
            self._life.begin()
        except BaseException:
            self._life.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        story = self._life.close()
        if story is not None and error is None:
            raise AssertionError(story)

    # ----------------------------------------------------------------------------------------------------- what goes in

    def send(self, uid: str, rows: Iterable[object] | DataFrame) -> None:
        """Have a source read rows, as one batch in this order (``max_rows_per_batch`` may cut it), and work them off.

        While the job is dead the rows wait for the restart, as in a topic.

        Args:
            uid: of the source.
            rows: dictionaries by column, Spark rows, or a DataFrame. Columns left out are ``NULL``; times, dates and
                decimals may be text, times without an offset are UTC. :class:`Crash`, :class:`Pause`, :class:`Idle`
                and :class:`End` may stand among them.

        Raises:
            HarnessError: there is no such source, or it has ended.
            SchemaMismatch: a row does not fit; with its column and value.
            PenstockError: the job failed over them.
        """
        self._cast.source(uid).send(rows)
        self._wake(uid)

    def idle(self, uid: str) -> None:
        """A source says that nothing comes for now: until its next rows it holds no watermark back. As :meth:`send`."""
        self.send(uid, [Idle()])

    def hold(self, uid: str) -> None:
        """A source stands still until :meth:`release`: it reads nothing and passes no barrier on.

        With two sources this takes their barriers apart, as happens to every job under load.

        Raises:
            HarnessError: there is no such source.
        """
        self._cast.source(uid)
        self._life.move(lambda running: running.hold(uid, is_held=True))

    def release(self, uid: str) -> None:
        """A source that was held goes on.

        Raises:
            HarnessError: there is no such source.
            PenstockError: the job failed over what it read.
        """
        self._cast.source(uid)
        self._life.move(lambda running: running.hold(uid, is_held=False))

    def advance(self, duration: str) -> None:
        """Let time pass, such as ``"5 seconds"``, and what is due in between happen: timers, idleness, checkpoints.

        Raises:
            GraphError: it is no length of time.
            PenstockError: the job failed meanwhile.
        """
        target = MonotonicTime(self.clock.now() + parse_duration("duration", duration))
        while self._life.is_alive and self.clock.now() < target:
            self._life.move(lambda running: running.advance_to(target))
        if self.clock.now() < target:
            self.clock.move_to(target)

    # ------------------------------------------------------------------------------------------ checkpoints and the end

    def checkpoint(self, *, wait: bool = True) -> CheckpointId | None:
        """Take a checkpoint; when this returns it is in the log and its output is published.

        Args:
            wait: ``False`` asks for it and leaves it pending if a source is held; returns ``None``.

        Returns:
            Its number; ``None`` if the crash that was armed has happened and nobody asked for a restart.

        Raises:
            CheckpointAborted: it was aborted; with the reason.
            HarnessError: the job is dead, or a task never comes to it; with what each is doing.
        """
        return take_checkpoint(self._life, None, wait=wait)

    def savepoint(self, name: str) -> CheckpointId | None:
        """As :meth:`checkpoint`, pinned under a name.

        Raises:
            SettingsError: it cannot be a name.
            RequestRefused: the name is taken; the message says by which checkpoint.
            CheckpointAborted: it was aborted.
            HarnessError: the job is dead, or a task never comes to it.
        """
        return take_checkpoint(self._life, check_savepoint_name(name), wait=True)

    def stop(self) -> None:
        """Stop the job in order: a last checkpoint, its output published. Windows stay open; :meth:`restart` goes on.

        Raises:
            PenstockError: the job failed instead.
            HarnessError: the job is dead, or cannot stop; with what each task is doing.
        """
        stop_job(self._life)

    def end(self) -> None:
        """All sources end: every window fires, a last checkpoint is taken, everything is published, the job is over.

        Time moves on as far as that needs.

        Raises:
            PenstockError: the job failed instead.
            HarnessError: the job is dead, or cannot end; with what each task is doing.
        """
        _ = self._life.running
        for source in self._cast.sources.values():
            if not source.has_ended:
                source.send([End()])
        until_over(self._life, "end()", self._let_go)

    # ------------------------------------------------------------------------------------------------ crash and restart

    def crash(self, at: str | None = None, *, hit: int = 1) -> None:
        """The job dies as if its process were killed: now, or when it comes to a failpoint.

        What was only in memory is gone, nothing is cleaned up. Then :meth:`restart`. If that is called *before* the
        point is reached, it follows by itself as soon as the job has died there, and the method in which that happens
        goes on. A point that is never reached fails the test at the end of the ``with`` block.

        Args:
            at: one of :data:`penstock.failpoints.FAILPOINTS`, for example ``"checkpoint.manifest.written"``.
            hit: die when the point is reached for the ``hit``-th time from now on.

        Raises:
            HarnessError: there is no such point (with the nearest name), another crash still waits, or the job is dead
                and no point was given.
        """
        if at is not None:
            self._life.arm(at, hit=hit)
            return
        _ = self._life.running
        self._life.die("it was crashed; restart() is next")

    def restart(
        self,
        pipeline: PipelineDefinition | None = None,
        *,
        allow_non_restored_state: bool = False,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        """Begin again, as a new process would, from what is durable.

        Args:
            pipeline: a new version of the pipeline, to see that it takes over the state of the old one. Rows that were
                sent and are read again are taken by the columns that its sources have now.
            allow_non_restored_state: leave state unused whose step the pipeline no longer has.
            rename: by old uid, the new one of a step; what was sent to a source is read again under its new uid.

        Raises:
            HarnessError: the job runs and no crash is armed; or an armed one was never reached; or the new pipeline
                has another name.
            PenstockError: the recovery failed.
        """
        if self._life.is_alive:
            restart_later(self._life, is_new=pipeline is not None)
            return
        names = check_rename(rename or {})
        if pipeline is not None:
            self._cast.rename(names)
            self._play(pipeline)
        self._life.restore_so(allow_non_restored_state=allow_non_restored_state, rename=names)
        self._life.begin()

    @property
    def is_alive(self) -> bool:
        """Whether the job runs: it has not crashed, failed, stopped or ended."""
        return self._life.is_alive

    @property
    def folder(self) -> Path:
        """The state directory, gone after the ``with`` block."""
        return self._life.folder

    def _let_go(self, running: SteppedAttempt) -> None:
        for uid in self._cast.sources:
            running.hold(uid, is_held=False)
            running.wake(uid)

    def _play(self, pipeline: PipelineDefinition) -> None:
        try:
            self._life.play(self._graph(pipeline))
        except BaseException:
            if pipeline is not self._pipeline:
                self._graph(self._pipeline)  # the stand-ins are those of the old version again
            raise
        self._pipeline = pipeline

    def _graph(self, pipeline: PipelineDefinition) -> Graph:
        with self._life.own_thread():
            return self._cast.graph(pipeline, self._life.spark, mode=self._settings.mode)

    def _wake(self, uid: str) -> None:
        if self._life.is_alive:
            self._life.move(lambda running: running.wake(uid))
