"""One run of one code in a shadow: a muted pipeline on a copy of an export, to where it has caught up."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import RequestFailed
from penstock.facts import Fact, RowsRead, SourceLag
from penstock.job import Job
from penstock.job.signals import stopping_on_signals
from penstock.operate.directory import JobDirectory
from penstock.operate.shadow.muting import Muted, Muting
from penstock.operate.shadow.stages import Stage, Told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.facts import Listener
    from penstock.graph.nodes import Graph
    from penstock.graph.pipeline import PipelineDefinition
    from penstock.handles import Position
    from penstock.job import Report

OLD: Final = "old"
NEW: Final = "new"
COPY: Final = "copy"
"""Below the folder of a shadow run: what the old and the new code wrote, and, while they run, their state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one code, which has ended."""

    side: str
    report: Report
    ends: Mapping[str, Position]
    sinks: frozenset[str]
    notes: tuple[str, ...] = field(default=())

    @property
    def rows(self) -> int:
        """How many it has read, of all sources."""
        return sum(self.report.rows_read.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Runs muted pipelines on copies of one export.

    Attributes:
        spark: the session.
        folder: of the shadow run.
        export: the folder of the export.
        listener: gets all facts.
        tell: told how far a run is.
        without: sources that are left out, by the uids of all codes.
        settings: of all runs.
    """

    spark: SparkSession
    folder: Path
    export: str
    listener: Listener | None
    tell: Told
    without: frozenset[str]
    settings: Mapping[str, Any]

    def run(
        self,
        side: str,
        pipeline: PipelineDefinition,
        *,
        ends: Mapping[str, Position],
        rows: int | None = None,
        **options: Any,
    ) -> Run:
        """Run it until it has caught up; with options of a job that are this side's alone.

        Args:
            side: whose code it is.
            pipeline: the code.
            ends: where sources end.
            rows: how many there are to read, if that is known.
            options: further ones of the job.

        Raises:
            PenstockError: what ended it, with whose code it was.
        """
        muting = Muting(folder=self.folder / side, ends=ends, without=self.without)
        graph = pipeline.graph()
        state = self.folder / COPY / side
        job = Job(
            Muted(pipeline, muting),
            state=state,
            spark=self.spark,
            restore_from=Path(self.export),
            listener=Teller(side, rows, self.tell, self.listener),
            **options,
            **self.settings,
        )
        _finish(job, side)
        return Run(
            side=side,
            report=job.report(),
            ends=_positions(state, pipeline.name),
            sinks=graph.sinks,
            notes=_notes(muting, graph),
        )


class Teller:
    """A listener that tells how many rows a run has read, and of how many, and passes every fact on."""

    def __init__(self, side: str, rows: int | None, tell: Told, listener: Listener | None) -> None:
        self._side = side
        self._rows = rows
        self._tell = tell
        self._listener = listener
        self._read = 0
        self._behind: dict[str, int] = {}
        self._lock = threading.Lock()
        tell(Stage(doing=side, of=rows))

    def __call__(self, fact: Fact) -> None:
        """Take one in."""
        if self._listener is not None:
            self._listener(fact)
        with self._lock:
            match fact:
                case RowsRead(rows=rows):
                    self._read += rows
                case SourceLag(task=task, rows=behind):
                    self._behind[task] = behind
                case _:
                    return
            stage = Stage(doing=self._side, done=self._read, of=self._rows, behind=self._left())
        self._tell(stage)

    def _left(self) -> int | None:
        """Rows that wait, as far as sources tell; what is known otherwise says more."""
        return sum(self._behind.values()) if self._behind and self._rows is None else None


def _finish(job: Job, side: str) -> None:
    """Run it until it has caught up; a run that was stopped before shows nothing."""
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        job.request_stop()

    with stopping_on_signals(stop):
        job.start("caught-up")
        job.wait()
    if stopped.is_set() or job.is_cut_short:
        msg = f"the run of the {side} code was stopped before it had caught up, so there is nothing to compare"
        raise RequestFailed(msg)


def _positions(state: Path, job: str) -> dict[str, Position]:
    """Where each source stood at the last checkpoint."""
    point = JobDirectory(state, job).read().restore_point
    tasks = point.tasks if point is not None else ()
    return {task.task: task.position for task in tasks if task.position is not None}


def _notes(muting: Muting, graph: Graph) -> tuple[str, ...]:
    return tuple(
        f"source '{uid}' is not in the old code, so it was read to what was there when it was opened: its rows are in "
        "the new output only"
        for uid in muting.unbounded(graph)
    )
