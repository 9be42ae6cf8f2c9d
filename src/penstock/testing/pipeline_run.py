"""A user's pipeline under test: rows in, rows out, time by hand, crashes where the test says.

Everything between the scripted sources and the collecting sinks is the product itself, with its log and its state in
a temporary directory, stepped on the calling thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.checkpoint.control import check_savepoint_name
from penstock.checkpoint.renaming import check_rename
from penstock.durations import parse_duration
from penstock.graph.nodes import Graph
from penstock.graph.pipeline import PipelineDefinition
from penstock.ids import CheckpointId, Instant
from penstock.settings import read_settings
from penstock.testing.asking import restart_later, stop_job, take_checkpoint, until_over
from penstock.testing.clock import ManualClock
from penstock.testing.life import Life
from penstock.testing.outcome import Outcome
from penstock.testing.script import End, Idle
from penstock.testing.stepping import Running
from penstock.testing.substitute import Cast

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self

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
        super().__init__(Cast())
        self.clock = clock
        self._pipeline = pipeline
        self._spark = spark
        self._settings = read_settings({"checkpoint_every": _SELDOM, **settings}, environment={})
        self._life = Life(spark, self._settings, clock, self._take)

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
        target = Instant(self.clock.now() + parse_duration("duration", duration))
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
            at: one of :data:`penstock.failpoints.KNOWN`, for example ``"checkpoint.manifest.written"``.
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

    def _let_go(self, running: Running) -> None:
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
