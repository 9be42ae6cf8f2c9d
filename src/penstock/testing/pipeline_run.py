"""``ps.testing.run``: a pipeline under test."""

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
from penstock.errors import CheckpointAborted, HarnessError, RequestRefused, did_you_mean, no_column
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
from penstock.user_code import short_tracebacks

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self


# ---- output of a pipeline --------------------------------------------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ROLES: Final = ("source", "sink")
_END_OF_TIME: Final = datetime.max.replace(tzinfo=timezone.utc)


class Outcome:
    """The output of a pipeline under test: rows, watermarks, counters, facts. Steps and sinks are addressed by uid.

    Attributes:
        facts: everything that the runtime reported, in order.
    """

    def __init__(self, stand_ins: StandIns) -> None:
        self.facts: list[Fact] = []
        self._stand_ins = stand_ins
        self._watermarks: dict[str, int] = {}

    def rows(self, uid: str, *columns: str) -> list[Row]:
        """Return the published rows of a sink as dictionaries; times are ``datetime`` in UTC.

        They are in the order of their checkpoints, and within one sorted by their columns from left to right.

        Args:
            uid: of the sink; side outputs are sinks like any other.
            columns: only these, in this order; ``None`` in rows of another version of the pipeline that lack one.

        Raises:
            HarnessError: there is no such sink or column.
        """
        return _select_columns(self._stand_ins.sink(uid).rows, columns, uid)

    def staged(self, uid: str, *columns: str) -> list[Row]:
        """Return the rows that a sink has written but not published, sorted; their checkpoint is not complete yet.

        Raises:
            HarnessError: there is no such sink or column.
        """
        return _select_columns(self._stand_ins.sink(uid).staged, columns, uid)

    def watermark(self, uid: str) -> datetime | None:
        """Return the watermark of a step or sink, in UTC.

        ``None`` before the first one, ``datetime.max`` (in UTC) after its sources have ended.

        Raises:
            HarnessError: there is no such step or sink.
        """
        roles = self._stand_ins.roles
        if roles.get(uid) not in ("step", "sink"):
            known = [each for each, role in roles.items() if role != "source"]
            if uid in roles:
                msg = f"{uid!r} is a source, which has no watermark. Ask for that of a step or a sink."
            else:
                msg = f"Step {uid!r} does not exist{did_you_mean(uid, known) or '.'}"
            raise HarnessError(msg)
        at = self._watermarks.get(uid, MIN_WATERMARK)
        if at in (MIN_WATERMARK, MAX_WATERMARK):
            return None if at == MIN_WATERMARK else _END_OF_TIME
        return _EPOCH + timedelta(microseconds=at)

    def counters(self, uid: str) -> dict[str, int]:
        """Return a step's counters (``late``, ``fired`` …) by name. Rows read again after a restart count again.

        Raises:
            HarnessError: there is no such step.
        """
        if uid not in self._stand_ins.roles:
            msg = f"Step {uid!r} does not exist{did_you_mean(uid, self._stand_ins.roles) or '.'}"
            raise HarnessError(msg)
        return {name: amount for (step, name), amount in self.report().counters.items() if step == uid}

    def report(self) -> Report:
        """Return the totals so far, as ``penstock.Job.report`` does."""
        roles = self._stand_ins.roles
        uids = {role: frozenset(uid for uid in roles if roles[uid] == role) for role in _ROLES}
        collector = ReportCollector(sources=uids["source"], sinks=uids["sink"])
        for fact in self.facts:
            collector(fact)
        return collector.report()

    def _on_fact(self, fact: Fact) -> None:
        """Record a fact; the listener of every attempt."""
        self.facts.append(fact)
        if isinstance(fact, JobStarted):
            self._watermarks.clear()  # each task announces what it was restored with
        elif isinstance(fact, WatermarkAdvanced):
            self._watermarks[fact.task] = fact.at


def _select_columns(rows: list[Row], columns: Sequence[str], uid: str) -> list[Row]:
    if not columns:
        return rows
    known = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns:
        if rows and name not in known:
            msg = f"Sink {uid!r}: {no_column(name, known)}"
            raise HarnessError(msg)
    return [{name: row.get(name) for name in columns} for row in rows]


# ---- run -------------------------------------------------------------------------------------------------------------
# Between the scripted sources and the collecting sinks the code is the one that runs in production, with its log and
# its state in a temporary directory, stepped on the calling thread.

_NO_PERIODIC_CHECKPOINTS: Final = "1000 days"
"""Default interval of checkpoints: so long that a test only has those that it takes itself."""


def run(
    pipeline: PipelineDefinition, spark: SparkSession, *, clock: ManualClock | None = None, **settings: object
) -> PipelineRun:
    """Return a run of the pipeline under test, for a ``with`` block: its steps run on scripted sources and sinks.

    Scripted sources with the same columns replace its sources, and collecting sinks replace its sinks; the uids stay.
    No outside system is touched, except that tables of ``p.table`` are read. No thread is started and nothing waits.
    Time only moves by ``PipelineRun.advance``. When a method returns, everything that could be done is done.

    Args:
        pipeline: a function decorated with ``@ps.pipeline``.
        spark: a classic session; it is left as it was.
        clock: by default a new one that starts at 2026-01-01 00:00 UTC.
        settings: as for ``penstock.Job``; the environment is not read, and periodic checkpoints are taken only if
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


@short_tracebacks
class PipelineRun(Outcome):
    """A pipeline under test, made by ``run``. Sources, steps and sinks are addressed by their uid.

    Attributes:
        clock: the clock of the job.
        facts: everything that the runtime reported, in order.
    """

    def __init__(
        self, pipeline: PipelineDefinition, spark: SparkSession, *, clock: ManualClock, settings: Mapping[str, object]
    ) -> None:
        super().__init__(StandIns())
        self.clock = clock
        self._pipeline = pipeline
        self._spark = spark
        self._settings = read_settings({"checkpoint_every": _NO_PERIODIC_CHECKPOINTS, **settings}, environment={})
        self._job = JobUnderTest(spark, self._settings, clock, self._on_fact)

    def __enter__(self) -> Self:
        try:
            self._set_pipeline(self._pipeline)
            self._job.begin()
        except BaseException:
            self._job.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        message = self._job.close()
        if message is not None and error is None:
            raise AssertionError(message)

    # ---- input and time ----------------------------------------------------------------------------------------------

    def send(self, uid: str, rows: Iterable[object] | DataFrame) -> None:
        """Let a source read these rows in order, as one batch unless ``max_rows_per_batch`` cuts it, and process them.

        If the job is dead, the rows wait for the restart, as they would in a topic.

        Args:
            uid: of the source.
            rows: dictionaries by column, Spark rows, or a DataFrame. Columns left out are ``NULL``; times, dates and
                decimals may be text, times without an offset are UTC. ``Crash``, ``Pause``, ``Idle``
                and ``End`` may be among them.

        Raises:
            HarnessError: there is no such source, or it has ended.
            SchemaMismatch: a row does not fit; the message has the column and value.
            PenstockError: the job failed because of these rows.
        """
        self._stand_ins.source(uid).send(rows)
        self._wake(uid)

    def idle(self, uid: str) -> None:
        """Make a source idle: it holds back no watermark until its next rows. Raises as ``send`` does."""
        self.send(uid, [Idle()])

    def hold(self, uid: str) -> None:
        """Stop a source until ``release``: it reads nothing and passes no barrier on.

        With two sources their barriers then arrive at different times, as in every job under load.

        Raises:
            HarnessError: there is no such source, or the job is dead.
        """
        self._stand_ins.source(uid)
        self._job.move(lambda running: running.hold(uid, is_held=True))

    def release(self, uid: str) -> None:
        """Let a held source continue.

        Raises:
            HarnessError: there is no such source, or the job is dead.
            PenstockError: the job failed because of what it read.
        """
        self._stand_ins.source(uid)
        self._job.move(lambda running: running.hold(uid, is_held=False))

    def advance(self, duration: str) -> None:
        """Move time by e.g. ``"5 seconds"``, and run everything that falls due: timers, idleness, checkpoints.

        Raises:
            GraphError: ``duration`` is not a length of time.
            PenstockError: the job failed meanwhile.
        """
        target = MonotonicTime(self.clock.now() + parse_duration("duration", duration))
        while self._job.is_alive and self.clock.now() < target:
            self._job.move(lambda running: running.advance_to(target))
        if self.clock.now() < target:
            self.clock.move_to(target)

    # ---- checkpoints and the end -------------------------------------------------------------------------------------

    def checkpoint(self, *, wait: bool = True) -> CheckpointId | None:
        """Take a checkpoint: when this returns, it is in the log and its output is published.

        Args:
            wait: whether a checkpoint that a held source keeps pending is an error. Without it, returns ``None`` then.

        Returns:
            Its number; ``None`` if the job died at the armed crash and no restart was asked for.

        Raises:
            CheckpointAborted: it was aborted; the message has the reason.
            HarnessError: the job is dead, or a task never reaches the checkpoint; the message says what each is doing.
        """
        return take_checkpoint(self._job, None, wait=wait)

    def savepoint(self, name: str) -> CheckpointId | None:
        """Take a ``checkpoint`` that is pinned under a name.

        Raises:
            SettingsError: the name is not valid.
            RequestRefused: the name is taken; the message says by which checkpoint.
            CheckpointAborted: it was aborted.
            HarnessError: the job is dead, or a task never reaches the checkpoint.
        """
        return take_checkpoint(self._job, check_savepoint_name(name), wait=True)

    def stop(self) -> None:
        """Stop the job in order: take a last checkpoint, publish its output. Windows stay open for ``restart``.

        Raises:
            PenstockError: the job failed instead.
            HarnessError: the job is dead, or cannot stop; the message says what each task is doing.
        """
        stop_job(self._job)

    def end(self) -> None:
        """End all sources, and with them the job: every window fires, a last checkpoint is taken, all is published.

        Moves time forward as far as that needs.

        Raises:
            PenstockError: the job failed instead.
            HarnessError: the job is dead, or cannot end; the message says what each task is doing.
        """
        _ = self._job.running  # raises if the job is dead
        for source in self._stand_ins.sources.values():
            if not source.has_ended:
                source.send([End()])
        until_over(self._job, "end()", self._release_all)

    # ---- crash and restart -------------------------------------------------------------------------------------------

    def crash(self, at: str | None = None, *, hit: int = 1) -> None:
        """Kill the job as if its process were killed: now, or when it reaches a failpoint.

        What was only in memory is lost, and nothing is cleaned up. Call ``restart`` next. If that is called
        *before* the failpoint is reached, the job restarts as soon as it has died there, and the method in which it
        died continues. A failpoint that is never reached fails the test at the end of the ``with`` block.

        Args:
            at: one of ``penstock.failpoints.FAILPOINTS``, for example ``"checkpoint.manifest.written"``.
            hit: die when the failpoint is reached for the ``hit``-th time from now on.

        Raises:
            HarnessError: there is no such failpoint (the message has the nearest name), another crash is still armed,
                or the job is dead and ``at`` was not given.
        """
        if at is not None:
            self._job.arm(at, hit=hit)
            return
        _ = self._job.running  # raises if the job is dead
        self._job.die("it was crashed; restart() is next")

    def restart(
        self,
        pipeline: PipelineDefinition | None = None,
        *,
        allow_non_restored_state: bool = False,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        """Start the job again from what is durable, as a new process would.

        Args:
            pipeline: a new version of the pipeline, to test that it takes over the state of the old one. Rows that are
                read again get the columns that its sources have now.
            allow_non_restored_state: ignore state of steps that the pipeline no longer has.
            rename: old uid to new uid of a step or source; rows sent to a source are read again under its new uid.

        Raises:
            HarnessError: the job runs and no crash is armed; or a crash is armed, and a restart waits for it already or
                an argument was given; or the new pipeline has another name.
            PenstockError: the recovery failed.
        """
        if self._job.is_alive:
            has_arguments = pipeline is not None or allow_non_restored_state or bool(rename)
            restart_later(self._job, has_arguments=has_arguments)
            return
        names = check_rename(rename or {})
        if pipeline is not None:
            self._stand_ins.rename(names)
            self._set_pipeline(pipeline)
        self._job.set_restore_options(allow_non_restored_state=allow_non_restored_state, rename=names)
        self._job.begin()

    @property
    def is_alive(self) -> bool:
        """Whether the job runs: it has not crashed, failed, stopped or ended."""
        return self._job.is_alive

    @property
    def folder(self) -> Path:
        """The state directory, gone after the ``with`` block."""
        return self._job.folder

    def _release_all(self, running: SteppedAttempt) -> None:
        for uid in self._stand_ins.sources:
            running.hold(uid, is_held=False)
            running.wake(uid)

    def _set_pipeline(self, pipeline: PipelineDefinition) -> None:
        try:
            self._job.set_graph(self._build_graph(pipeline))
        except BaseException:
            if pipeline is not self._pipeline:
                self._build_graph(self._pipeline)  # makes the stand-ins of the old version again
            raise
        self._pipeline = pipeline

    def _build_graph(self, pipeline: PipelineDefinition) -> Graph:
        with self._job.own_thread():
            return self._stand_ins.graph(pipeline, self._job.spark, mode=self._settings.mode)

    def _wake(self, uid: str) -> None:
        if self._job.is_alive:
            self._job.move(lambda running: running.wake(uid))


# ---- checkpoints and ends of a job -----------------------------------------------------------------------------------
# If a crash and its restart come in between, the new attempt is asked again.

_request_numbers: Final = itertools.count(1)
_MAX_TIME_TO_END: Final = 500 * 86_400_000_000
"""Microseconds that a job may take to end."""  # timers due later, as the periodic checkpoint by default, do not count


def take_checkpoint(job: JobUnderTest, name: str | None, *, wait: bool) -> CheckpointId | None:
    """Take a checkpoint, pinned if a name is given; returns ``None`` if it is pending, or the job died meanwhile.

    Raises:
        CheckpointAborted: it was aborted.
        RequestRefused: the name is taken.
        HarnessError: the job is dead, or the checkpoint never completes.
    """
    request = f"test-{next(_request_numbers)}"

    def ask(_: SteppedAttempt) -> None:
        job.answers.pop(request, None)  # of an attempt that died
        at, wall = job.clock.now(), job.clock.wall()
        event = CheckpointRequested(at=at, wall=wall, request=request, name=name, owner="test")
        job.requests.submit(event, lambda reply: job.answers.__setitem__(request, reply))

    while True:
        attempt = job.number
        job.move(ask)
        if job.number == attempt:
            break  # otherwise the job died and restarted: the new attempt only knows the request if the log has it
    if not job.is_alive:
        return None
    answer = job.answers.get(request)
    if answer is None:
        if not wait:
            return None
        msg = f"The checkpoint does not complete: {_describe_tasks(job.running)}."
        raise HarnessError(msg)
    if answer.outcome is RequestOutcome.REFUSED:
        raise RequestRefused(answer.message)
    if answer.outcome is not RequestOutcome.DONE:
        raise CheckpointAborted(answer.message)
    return answer.checkpoint


def stop_job(job: JobUnderTest) -> None:
    """Stop the job in order.

    Raises:
        HarnessError: it is dead, or does not end.
    """

    def ask(running: SteppedAttempt) -> None:
        at, wall = job.clock.now(), job.clock.wall()
        running.supervisor.request(StopRequested(at=at, wall=wall, request=f"test-{next(_request_numbers)}"))

    until_over(job, "stop()", ask)


def restart_later(job: JobUnderTest, *, has_arguments: bool) -> None:
    """Have the job restarted as soon as it dies at the armed crash.

    Raises:
        HarnessError: no crash is armed, a restart was asked for already, or ``has_arguments``.
    """
    if job.point is None:
        msg = "The job is running, and no crash is armed. Call crash(), stop() or end() first."
        raise HarnessError(msg)
    if has_arguments:
        msg = (
            "A restart that waits for a crash takes no arguments. Call restart() with them when the job has died. "
            f"{job.point.not_reached()}"
        )
        raise HarnessError(msg)
    if job.restarts_then:
        msg = f"The restart waits for the crash. {job.point.not_reached()}"
        raise HarnessError(msg)
    job.restarts_then = True


def until_over(job: JobUnderTest, what: str, ask: Callable[[SteppedAttempt], None]) -> None:
    """Ask each attempt to end, and let time pass until the job has ended, or has died without a restart to follow.

    Raises:
        HarnessError: the job is dead, or does not end.
    """
    asked_attempt, latest = -1, job.clock.now() + _MAX_TIME_TO_END
    while True:
        if job.number != asked_attempt:
            asked_attempt = job.number
            job.move(ask)
        if not job.is_alive:
            return
        if job.number != asked_attempt:
            continue  # the job died and restarted: ask the new attempt
        due = job.running.next_due
        if due is None or due > latest:
            msg = f"{what} does not end: {_describe_tasks(job.running)}."
            raise HarnessError(msg)
        job.move(lambda running, due=due: running.advance_to(due))  # type: ignore[misc]


def _describe_tasks(running: SteppedAttempt) -> str:
    return ", ".join(f"'{task}' is {doing}" for task, doing in running.doing.items())
