"""Gathers what a plan of a start is made from: the log, the pipeline, an export, backlogs. Changes nothing.

Spark is used only to compare the columns of restored state. Whether another process runs the job is judged by the log
and by process ids.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from penstock.admin.start_plan import (
    PipelineInfo,
    SinkPlan,
    StartDecision,
    StartPlan,
    plan_start,
    start_target,
)
from penstock.admin.verify import check_files
from penstock.checkpoint import paths
from penstock.checkpoint.entries import Claim, host_of
from penstock.checkpoint.history import History
from penstock.checkpoint.log import read_history
from penstock.checkpoint.recovery import check_rename
from penstock.clock import Clock, SystemClock
from penstock.compiler.tasks import build_tasks
from penstock.control.client import is_this_host, owner_is_gone, root_of
from penstock.dead_letters.letters import replayed_by
from penstock.dead_letters.store import replay_numbers
from penstock.errors import GraphError, PenstockError, SettingsError, StateDirectoryRefused, StateIncompatible
from penstock.filesystem.local import LocalFileSystem
from penstock.graph.fingerprint import fingerprint
from penstock.graph.nodes import Keyed, Read, Write
from penstock.graph.validate import validate_mode, weakest_guarantee
from penstock.handles import Guarantee, split_replays
from penstock.interfaces.source import SupportsBacklog
from penstock.job.start import (
    DeclaredSteps,
    StartOptions,
    declare_steps,
    parse_start_options,
    resolve_start,
    source_positions,
    step_records,
)
from penstock.spark.session import active_session, clone_session, make_session, set_active_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.admin.start_plan import BacklogOrReason
    from penstock.checkpoint.export import Import
    from penstock.graph.nodes import Graph
    from penstock.handles import Position
    from penstock.settings import Settings

UNKNOWN_BACKLOG: Final = "only reading tells"
"""Reason given for sources that do not report their backlog."""
MAX_SHOWN: Final = 5
"""Number of damaged files of an export that are named."""


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
        compares_schemas: whether to compare the columns of restored state, which takes Spark's analyser.
        spark: a session for that, which stays as it is. Without one a local session is made, and stopped.
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
    start = parse_planned_start(
        start_at=start_at,
        fresh=fresh,
        claim=claim,
        discard_unpublished=discard_unpublished,
        allow_non_restored_state=allow_non_restored_state,
        rename=rename,
    )
    return make_plan(
        graph, start, state=state, settings=settings, compares_schemas=compares_schemas, spark=spark, clock=clock
    )


def parse_planned_start(
    *,
    start_at: str | os.PathLike[str] | None,
    fresh: bool,
    claim: bool,
    discard_unpublished: bool,
    allow_non_restored_state: bool,
    rename: Mapping[str, str] | None,
) -> StartOptions:
    """The options of the start that is planned, as one value.

    Raises:
        SettingsError: they contradict one another.
        GraphError: a renamed uid is not a uid.
    """
    if fresh and start_at is not None:
        msg = f"a start is either fresh or from {os.fspath(start_at)!r}: leave one of them out"
        raise SettingsError(msg)
    if discard_unpublished and not fresh and start_at is None:
        msg = "only a start that goes back can discard what is not published: say from which checkpoint, or fresh"
        raise SettingsError(msg)
    start = parse_start_options(
        fresh=fresh,
        restore_from=start_at,
        claim=claim,
        discard_unpublished=discard_unpublished,
        allow_non_restored_state=allow_non_restored_state,
    )
    return replace(start, rename=check_rename(rename))


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
    """What a start with these options would do now: see :func:`plan`."""
    validate_mode(graph, Guarantee(settings.mode))
    at = (clock or SystemClock()).wall()
    history, refused = _read(graph.name, state, past_unreadable=start.is_rewind)
    resolved = resolve_start(start, history, job=graph.name, at=at)
    rewind_to, bring = resolved["rewind_to"], resolved["bring"]
    start = replace(
        start,
        checkpoint=None if rewind_to is None else str(rewind_to),
        sha256=None if bring is None else bring.export.sha256,
    )
    pipeline, decision = pipeline_info(graph, settings), StartDecision(history=history, start=start, bring=bring)
    restored = _steps_to_compare(graph, decision)
    if restored and compares_schemas:
        manifest = decision.target()[1]
        recorded = {} if manifest is None else source_positions(manifest, start.rename)
        decision = replace(decision, resolver=_declared_steps(graph, spark, recorded).resolver)
    target = start_target(decision, pipeline.steps)
    positions = target.positions()
    return plan_start(
        pipeline,
        target,
        backlogs=_backlogs(graph, positions),
        settings=asdict(settings),
        at=at,
        warnings=(
            *_owner_warnings(history),
            *_replay_warnings(graph, state, positions),
            *(() if compares_schemas else _schema_warnings(restored)),
        ),
        refused=(*refused, *_export_problems(bring)),
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
        StateDirectoryRefused: no file system knows this address.
        CheckpointError: the log cannot be read.
    """
    root = root_of(state)
    if root is None:
        msg = f"{str(state)!r}: no file system for it; the state directory is a path or a file:// address"
        raise StateDirectoryRefused(msg)
    return read_history(LocalFileSystem(root / job), job, past_unreadable=past_unreadable)


def _read(job: str, state: str | Path, *, past_unreadable: bool) -> tuple[History, tuple[str, ...]]:
    """The log, and why a start would refuse the directory that it is in."""
    history = read_log(job, state, past_unreadable=past_unreadable)
    root = root_of(state)
    if history.is_empty and root is not None:
        files = LocalFileSystem(root / job)
        for folder in (paths.STATE, paths.STAGED, paths.WAL):
            for found in files.list(folder):
                return history, (f"the directory holds {found} but no log: the log was lost; restore it from a copy",)
    return history, ()


# ---- schemas of state ----------------------------------------------------------------------------------------------


def _steps_to_compare(graph: Graph, decision: StartDecision) -> tuple[str, ...]:
    """The steps of the pipeline whose state is restored; none if the start is refused."""
    try:
        _, target = decision.target()
    except (GraphError, StateIncompatible):
        return ()
    tasks = () if target is None else target.tasks
    restored = {decision.start.rename.get(task.task, task.task) for task in tasks if task.state is not None}
    return tuple(node.uid for node in graph.nodes if isinstance(node, Keyed) and node.uid in restored)


def _declared_steps(graph: Graph, spark: SparkSession | None, positions: Mapping[str, Position]) -> DeclaredSteps:
    """The state that the steps declare, by Spark's analyser; runs no job."""
    from penstock.compiler.analysis import analyze

    before = active_session() or spark
    session = clone_session(spark) if spark is not None else make_session(graph.name, master="local[1]")
    try:
        set_active_session(session)
        analysis = analyze(graph, session, positions=positions)
        try:
            return declare_steps(build_tasks(graph), analysis, session)
        finally:
            analysis.close()
    finally:
        if spark is None:
            session.stop()
        elif before is not None:
            set_active_session(before)


def _schema_warnings(restored: tuple[str, ...]) -> tuple[str, ...]:
    if not restored:
        return ()
    return (f"whether the state of {', '.join(map(repr, restored))} fits its columns now was not looked at",)


# ---- exports, sources and owners -----------------------------------------------------------------------------------


def _export_problems(bring: Import | None) -> Iterator[str]:
    """Files that an import would miss. Their content is not read: ``penstock verify`` does that."""
    if bring is None or bring.is_brought:
        return
    problems = check_files(LocalFileSystem(bring.folder), bring.export.files, quick=True)
    for each in problems[:MAX_SHOWN]:
        yield f"the export in {bring.folder} is not whole: {each.path} {each.message}"
    if len(problems) > MAX_SHOWN:
        yield f"and {len(problems) - MAX_SHOWN} more of its files; export the checkpoint once more, into another folder"


def _backlogs(graph: Graph, positions: Mapping[str, Position | None]) -> dict[str, BacklogOrReason]:
    """The backlog of each source at its position, or why it is unknown."""
    found: dict[str, BacklogOrReason] = {}
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
    return found


def _replay_warnings(graph: Graph, state: str | Path, positions: Mapping[str, Position | None]) -> Iterator[str]:
    """How many replays of dead letters each source will read, and how many it never will.

    A source that begins at its start reads none. Replays of a step that is gone or has another uid are never read.
    """
    root = root_of(state)
    for source, position in positions.items():
        if root is None or position is None:
            continue
        read, reads = split_replays(position)[1], replayed_by(graph, source)
        for uid in (*reads, *(uid for uid in read if uid not in graph.sinks)):
            count = sum(number > read.get(uid, 0) for number in replay_numbers(LocalFileSystem(root / graph.name), uid))
            replays = f"{count} replay{'s' if count > 1 else ''} of dead letters '{uid}'"
            if count and uid in reads:
                yield f"source '{source}' will read {replays} besides: penstock deadletter list {graph.name}"
            elif count:
                yield f"source '{source}' will not read {replays}: the pipeline has no such step, give it that uid back"


def _owner_warnings(history: History) -> tuple[str, ...]:
    """A warning if another process has the job, or may have it."""
    if history.is_empty or owner_is_gone(history):
        return ()
    claim = history.claim.body if history.claim is not None else None
    if not isinstance(claim, Claim):
        return ("it is not known whether the job runs: a start would ask, and refuse if it does",)
    owner = f"process {claim.pid} on {host_of(claim.host)} (generation {history.generation})"
    if is_this_host(claim.host):
        with suppress(OSError, OverflowError):
            os.kill(claim.pid, 0)
            return (f"the job runs: {owner}; a start would be refused, and the log moves on",)
    return (f"{owner} had the job last and has not ended it in order; a start would ask whether it lives",)
