"""Gathers what a plan of a start is made from: the log, the pipeline, an export, backlogs. Changes nothing.

Whether the start would be refused is decided by ``penstock.job.decision.decide_start``, which the start asks too.
Spark is used only to compare columns. Whether another process runs the job is judged by the log and by process ids.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.admin.start_plan import (
    PipelineInfo,
    SinkPlan,
    StartDecision,
    StartPlan,
    StartTarget,
    plan_start,
    start_target,
)
from penstock.checkpoint.entries import host_of
from penstock.checkpoint.history import History
from penstock.checkpoint.log import read_history
from penstock.clock import MAX_WATERMARK, Clock, SystemClock
from penstock.compiler.tasks import build_tasks
from penstock.control.client import is_this_host, owner_is_gone
from penstock.control.protocol import ControlFiles
from penstock.dead_letters.letters import replayed_by, with_dead_letter_folders
from penstock.dead_letters.store import replay_numbers
from penstock.errors import PenstockError, UnknownName
from penstock.filesystem import resolve
from penstock.graph.fingerprint import fingerprint
from penstock.graph.nodes import Read, Write
from penstock.graph.validate import validate_mode, weakest_guarantee
from penstock.handles import Guarantee, split_replays
from penstock.interfaces.source import KnowsEnd, SupportsBacklog
from penstock.job.decision import decide_start, refusal
from penstock.job.failures import to_penstock_error
from penstock.job.start import (
    DeclaredSteps,
    StartOptions,
    declare_steps,
    declare_without_columns,
    parse_start_options,
    recorded_positions,
    recorded_settings,
    resolve_start,
    step_records,
    unchosen_timezone,
)
from penstock.spark.session import active_session, borrow_session, set_active_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.admin.start_plan import BacklogOrReason
    from penstock.clock import WallTime
    from penstock.filesystem.base import FileSystem
    from penstock.graph.nodes import Graph
    from penstock.handles import Position
    from penstock.settings import Settings

UNKNOWN_BACKLOG: Final = "only reading tells"
"""Reason given for sources that do not report their backlog."""
UNCOMPARED: Final = (
    "columns were not compared: a start is refused if a step names one that does not exist, or does not fit its state"
)
"""Warning of a plan that was made without Spark."""


def plan(  # noqa: PLR0913 - all options of a start
    graph: Graph,
    *,
    state: str | Path,
    settings: Settings,
    start_at: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    claim: bool = False,
    discard_unpublished: bool = False,
    allow_non_restored_state: bool = False,
    rename: Mapping[str, str] | None = None,
    compares_schemas: bool = True,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
) -> StartPlan:
    """What a start of this pipeline would do now.

    Args:
        graph: the pipeline as frozen data, ``definition.graph()``.
        state: the folder that holds the state of jobs.
        settings: of the start.
        start_at: a savepoint's name or a checkpoint's number, instead of the newest checkpoint; or the folder of an
            exported one: a ``Path``, or a text with a slash.
        fresh: begin empty.
        claim: take that folder's files over.
        discard_unpublished: when going back in the job's own log, void output above instead of publishing it.
        allow_non_restored_state: leave state unused whose step the pipeline no longer has.
        rename: new uids of steps, by the old uids whose state they continue.
        compares_schemas: whether to compare the columns of steps and of restored state, which takes Spark's analyser.
        spark: a session for that, which stays as it is. Without one that of the process is taken, or a local session
            is made, and stopped.
        clock: for the age of checkpoints.

    Raises:
        SettingsError: the options contradict one another.
        UnknownName: there is no such checkpoint or folder, or no step to rename.
        CheckpointError: the log or the export cannot be read, or the export's files were taken over.
        GraphError: the settings cannot give the guarantee that a sink asks for.

    Example::

        found = plan(orders.graph(), state="./state", settings=read_settings({}))
        print(found.counts)
    """
    start = parse_start_options(
        restore_from=start_at,
        fresh=fresh,
        claim=claim,
        discard_unpublished=discard_unpublished,
        allow_non_restored_state=allow_non_restored_state,
        rename=rename,
    )
    return make_plan(
        graph, start, state=state, settings=settings, compares_schemas=compares_schemas, spark=spark, clock=clock
    )


def make_plan(
    graph: Graph,
    start: StartOptions,
    *,
    state: str | Path,
    settings: Settings,
    compares_schemas: bool = True,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
) -> StartPlan:
    """What a start with these options would do now: see ``plan``."""
    validate_mode(graph, Guarantee(settings.mode))
    at = (clock or SystemClock()).wall()
    filesystem = resolve(f"{state}/{graph.name}", probes=False)
    history = read_history(filesystem, graph.name, past_unreadable=start.is_rewind)
    asked = _Asked(with_dead_letter_folders(graph, filesystem), start, settings, spark, history, filesystem, at)
    resolved = resolve_start(start, history, job=graph.name, at=at)
    rewind_to, bring = resolved["rewind_to"], resolved["bring"]
    start = replace(
        start,
        checkpoint=None if rewind_to is None else str(rewind_to),
        sha256=None if bring is None else bring.export.sha256,
    )
    pipeline = pipeline_info(graph, settings)  # before the analysis, whose calls may change what functions hold
    declared, refused = asked.declare(compares_schemas=compares_schemas)
    decision = StartDecision(history=history, start=start, bring=bring, resolver=declared.resolver)
    target = start_target(decision, pipeline.steps)
    positions = target.positions()
    backlogs, unreadable = _backlogs(graph, positions)
    return plan_start(
        pipeline,
        target,
        backlogs=backlogs,
        settings=recorded_settings(settings, spark),
        at=at,
        warnings=(
            *_owner_warnings(history, ControlFiles(filesystem)),
            *_end_warnings(graph, target),
            *_replay_warnings(graph, filesystem, positions),
            *(() if compares_schemas else (UNCOMPARED,)),
        ),
        refusal=refused or unreadable,
    )


def pipeline_info(graph: Graph, settings: Settings) -> PipelineInfo:
    """The pipeline, as far as it is known without Spark."""
    sinks = []
    for node in graph.nodes:
        if isinstance(node, Write):
            best, part = weakest_guarantee(graph, node, Guarantee(settings.mode))
            is_best = best is Guarantee.EXACTLY_ONCE
            because = "" if is_best else f"{part} gives no more"
            sinks.append(SinkPlan(uid=node.uid, describe=node.sink.describe(), guarantee=best.value, because=because))
    return PipelineInfo(
        job=graph.name,
        steps=step_records(build_tasks(graph)),
        sources={node.uid: node.source.describe() for node in graph.nodes if isinstance(node, Read)},
        sinks=tuple(sinks),
        code=fingerprint(graph),
    )


def read_log(job: str, state: str | Path, *, past_unreadable: bool = False) -> History:
    """The log of a job as it is now; an empty one if there is none. Makes no folder.

    Raises:
        StateDirectoryRefused: no file system knows this address, or a log cannot be there.
        CheckpointError: the log cannot be read.
    """
    return read_history(resolve(f"{state}/{job}", probes=False), job, past_unreadable=past_unreadable)


# ---- the decision of the start ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a start is decided by."""

    graph: Graph
    start: StartOptions
    settings: Settings
    spark: SparkSession | None
    history: History
    filesystem: FileSystem
    at: WallTime

    def declare(self, *, compares_schemas: bool) -> tuple[DeclaredSteps, PenstockError | None]:
        """The steps, with their columns if they can be had, and the error that refuses the start.

        Raises:
            UnknownName: a rename names a step that does not exist.
        """
        declared = declare_without_columns(build_tasks(self.graph))
        refused = self._refusal(declared)
        if isinstance(refused, UnknownName):
            raise refused
        if not compares_schemas or (refused is not None and not self._restores_state):
            return declared, refused
        try:
            positions = recorded_positions(self.graph, self.start, lambda: self.history, at=self.at)
            declared = _declared_steps(self.graph, self.spark, positions)
        except PenstockError as error:
            return declared, refused or error
        except Exception as raised:
            return declared, refused or to_penstock_error(raised)
        return declared, refused or self._refusal(declared)

    def _refusal(self, declared: DeclaredSteps) -> PenstockError | None:
        return refusal(
            lambda: decide_start(
                self.graph,
                self.start,
                self.history,
                declared=declared,
                zone=unchosen_timezone(self.settings, self.spark),
                filesystem=self.filesystem,
                at=self.at,
            )
        )

    @property
    def _restores_state(self) -> bool:
        """Whether the log holds state, whose columns each have a verdict even if the start is refused anyway."""
        newest = max(self.history.manifests, default=None)
        tasks = () if newest is None else self.history.manifests[newest][1].tasks
        return any(task.state is not None for task in tasks)


def _declared_steps(graph: Graph, spark: SparkSession | None, positions: Mapping[str, Position]) -> DeclaredSteps:
    """The state that the steps declare, by Spark's analyser; runs no job."""
    from penstock.compiler.analysis import analyze

    before = active_session() or spark
    with borrow_session(graph.name, spark, master="local[1]") as session:
        set_active_session(session)
        analysis = analyze(graph, session, positions=positions)
        try:
            return declare_steps(build_tasks(graph), analysis, session)
        finally:
            analysis.close()
            if before is not None:
                set_active_session(before)


# ---- exports, sources and owners -----------------------------------------------------------------------------------


def _backlogs(
    graph: Graph, positions: Mapping[str, Position | None]
) -> tuple[dict[str, BacklogOrReason], PenstockError | None]:
    """The backlog of each source at its position, or why it is unknown; and the first error that no retry mends."""
    found: dict[str, BacklogOrReason] = {}
    refused = None
    for node in graph.nodes:
        if not isinstance(node, Read) or node.uid not in positions:
            continue
        found[node.uid] = UNKNOWN_BACKLOG
        if isinstance(node.source, SupportsBacklog):
            try:
                position = positions[node.uid]
                found[node.uid] = node.source.backlog(None if position is None else split_replays(position)[0])
            except PenstockError as error:
                found[node.uid] = str(error)
                refused = refused or (None if error.retry else error)
    return found, refused


def _end_warnings(graph: Graph, target: StartTarget) -> Iterator[str]:
    """A warning for each source that has ended and cannot say whether it has more rows."""
    tasks = () if target.target is None else target.target.tasks
    ended = {task.task for task in tasks if MAX_WATERMARK in task.watermarks}
    for node in graph.nodes:
        if isinstance(node, Read) and node.uid in ended and not isinstance(node.source, KnowsEnd | SupportsBacklog):
            yield (
                f"source '{node.uid}' ended in an earlier run, or was drained: a start is refused if it has more rows, "
                "which only reading tells"
            )


def _replay_warnings(graph: Graph, filesystem: FileSystem, positions: Mapping[str, Position | None]) -> Iterator[str]:
    """How many replays of dead letters each source will read, and how many it never will.

    A source that begins at its start reads none. Replays of a step that is gone or has another uid are never read.
    """
    for source, position in positions.items():
        if position is None:
            continue
        read, reads = split_replays(position)[1], replayed_by(graph, source)
        for uid in (*reads, *(uid for uid in read if uid not in graph.sinks)):
            count = sum(number > read.get(uid, 0) for number in replay_numbers(filesystem, uid))
            replays = f"{count} replay{'s' if count > 1 else ''} of dead letters '{uid}'"
            if count and uid in reads:
                yield f"source '{source}' will read {replays} besides: penstock deadletter list {graph.name}"
            elif count:
                yield f"source '{source}' will not read {replays}: the pipeline has no such step, give it that uid back"


def _owner_warnings(history: History, files: ControlFiles) -> tuple[str, ...]:
    """A warning if another process has the job, or may have it."""
    if history.is_empty or owner_is_gone(history, files):
        return ()
    claim = files.claim_of(history)
    if claim is None:
        return ("it is not known whether the job runs: a start would ask, and refuse if it does",)
    owner = f"process {claim.pid} on {host_of(claim.host)} (generation {history.generation})"
    if is_this_host(claim.host):
        with suppress(OSError, OverflowError):
            os.kill(claim.pid, 0)
            return (f"the job runs: {owner}; a start would be refused, and the log moves on",)
    return (f"{owner} had the job last and has not ended it in order; a start would ask whether it lives",)
