"""What a start does, or why it is refused: one function for an attempt and for ``penstock plan``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.checkpoint.log import require_log
from penstock.checkpoint.recovery import Recovery, decide_recovery
from penstock.clock import MAX_WATERMARK
from penstock.connectors.committers import check_open
from penstock.errors import CheckpointUnreadable, PenstockError
from penstock.graph.nodes import Read, Write
from penstock.handles import split_replays
from penstock.interfaces.sink import ChecksLog, CommitContext
from penstock.interfaces.source import ChecksRows, KnowsEnd, SupportsBacklog
from penstock.job.received_rows import (
    refuse_rows_beside_import,
    refuse_shared_folder,
    refuse_unread_rows,
    restored_anyway,
    restored_manifest,
)
from penstock.job.start import DeclaredSteps, StartOptions, check_timezone, resolve_start
from penstock.runtime.source_task import rows_after_end

if TYPE_CHECKING:
    from penstock.checkpoint.export import Import
    from penstock.checkpoint.history import History
    from penstock.clock import WallTime
    from penstock.filesystem.base import FileSystem
    from penstock.graph.nodes import Graph
    from penstock.handles import Generation, TaskSnapshot


def decide_start(
    graph: Graph,
    start: StartOptions,
    history: History,
    *,
    declared: DeclaredSteps,
    zone: str | None,
    filesystem: FileSystem,
    at: WallTime,
    generation: Generation | None = None,
) -> Recovery:
    """The recovery of a start. All that refuses a start is found here, and nothing is changed.

    A job calls it before it makes a session (without columns), before its claim and under it. A plan calls it for what
    a start would say. A refusal that is not raised here comes after the claim, and no plan knows of it.

    Args:
        graph: with its dead letter sinks placed, see ``with_dead_letter_folders``.
        start: the options.
        history: of the job's log.
        declared: the steps, with their columns if they are known.
        zone: the session's time zone; ``None`` if the job's settings choose one.
        filesystem: rooted at the job's directory.
        at: the present time.
        generation: of the claim; before there is one, the next generation is assumed.

    Raises:
        PenstockError: the start is refused.
    """
    resolved = resolve_start(start, history, job=graph.name, at=at, generation=generation)
    require_log(history, filesystem)
    refuse_rows_beside_import(filesystem, history, resolved["bring"], start.rename)
    if not start.allow_non_restored_state:
        uids = {step.uid for step in declared.steps} | start.rename.keys()
        refuse_unread_rows(filesystem, history, restored_anyway(history, resolved, at=at), uids)
    recovery = decide_recovery(history, declared.steps, resolver=declared.resolver, at=at, **resolved)
    refuse_shared_folder(history, restored_manifest(recovery, history), {step.uid for step in declared.steps})
    _require_export(recovery.bring)
    sinks = {node.uid: node.sink for node in graph.nodes if isinstance(node, Write)}
    check_open(recovery.commit, CommitContext(filesystem=filesystem, job=graph.name, sinks=sinks))
    for node in graph.nodes:
        if isinstance(node, Write) and isinstance(node.sink, ChecksLog):
            node.sink.check_log(history.log_id, node.uid)
        if isinstance(node, Read):
            _refuse_missing_rows(node, recovery.snapshots.get(node.uid))
            _refuse_rows_after_end(node, recovery.snapshots.get(node.uid))
    check_timezone(restored_manifest(recovery, history), zone)
    return recovery


def refusal(decide: Callable[[], object]) -> PenstockError | None:
    """The error that refuses a start; ``None`` if nothing does, or if a job would try again."""
    try:
        decide()
    except PenstockError as error:
        return None if error.retry else error
    return None


def _require_export(bring: Import | None) -> None:
    """Refuse an export that misses files. Their content is compared when they are copied."""
    if bring is None or bring.is_brought:
        return
    for copy in bring.copies:
        file, expected = Path(bring.folder, copy.source.path), copy.source.length
        length = file.stat().st_size if file.is_file() else None
        if length != expected:
            found = "is missing" if length is None else f"has {length:,} bytes instead of {expected:,}"
            msg = (
                f"The export in {bring.folder} is not whole: {copy.source.path} {found}. Export the checkpoint once "
                "more, into another folder."
            )
            raise CheckpointUnreadable(msg)


def _refuse_missing_rows(node: Read, snapshot: TaskSnapshot | None) -> None:
    """Refuse a start whose rows are not there any more. After a rewind is in the log, it would be too late."""
    if snapshot is None or snapshot.position is None or not isinstance(node.source, ChecksRows):
        return
    try:
        node.source.check_rows(split_replays(snapshot.position)[0])
    except PenstockError as error:
        if not error.retry:
            raise


def _refuse_rows_after_end(node: Read, snapshot: TaskSnapshot | None) -> None:
    """Refuse a source that has ended and has more rows. A task refuses those that come later."""
    if snapshot is None or snapshot.position is None or MAX_WATERMARK not in snapshot.watermarks:
        return
    source, position = node.source, split_replays(snapshot.position)[0]
    has_more = False
    if isinstance(source, KnowsEnd):
        has_more = source.has_more(position)
    elif isinstance(source, SupportsBacklog):
        try:
            waiting = source.backlog(position)
        except PenstockError as error:
            if not error.retry:
                raise
            return  # opening it fails likewise, and is tried again
        has_more = bool(waiting.rows or waiting.files)
    if has_more:
        raise rows_after_end(node.uid)
