"""The durable layers of one step: written in pieces and at snapshots, merged in the background."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from math import inf
from typing import TYPE_CHECKING

from penstock.clock import MIN_WATERMARK
from penstock.errors import CheckpointAborted, LayerMissing, is_refused_write
from penstock.handles import LayerRef, StateHandle
from penstock.spark.blocks import CachedUnion, frame_of_plan
from penstock.state.compaction import (
    PIECE_ROWS,
    PIECE_SHARE,
    Compaction,
    LayerSize,
    changing_keys,
    is_piece,
    plan_durable_compaction,
)
from penstock.state.layers import Layer, LayerStats, union_layers
from penstock.state.parquet import LayerWriter, SliceReader, stats_of, window_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.handles import Json
    from penstock.state.layers import SnapshotScope
    from penstock.state.stack import Stack

log = logging.getLogger("penstock")

SETTLED_AFTER, SETTLED_BELOW = 4, 0.01
"""The state has settled once this many snapshots added less than this part of all bytes."""
GROUP = "group"
"""Key of a layer's detail: the first layer that was written for the same snapshot, if it is not that one."""


class _OvertakenError(Exception):
    """Nobody needs the merge any more."""


class DurableLayers:
    """The durable layers of a step. Snapshots and pieces add layers, compaction merges some; it holds no cached rows.

    Invariant: they merge to the same rows as the layers in memory up to the epoch of the last durable snapshot or
    piece, closed windows aside. A piece is what was not durable when it began, written as soon as that is much: a
    barrier then finds little left. It never passes a snapshot that is named and not yet written. A snapshot writes the
    rest, as at most one layer. Compaction reads files and writes a file, apart from compaction in memory; a checkpoint
    refers to the older layers until the new one is there. Files that a snapshot has named are not deleted here: older
    checkpoints may need them, and only the log condemns. Other files are deleted when nothing needs them any more.

    Snapshots and pieces are written one after the other, merges too. Neither waits for the other, since a merge of all
    takes as long as many checkpoints. Readers never wait.

    Args:
        stack: the layers in memory.
        writer: makes rows durable.
        refs: the restored layers; each tells its columns if they differ from the writer's.
        horizon: the restored horizon.
    """

    def __init__(
        self, stack: Stack, writer: LayerWriter, refs: Sequence[LayerRef] = (), *, horizon: int = MIN_WATERMARK
    ) -> None:
        self._stack = stack
        self._writer = writer
        self._piece_writer = replace(writer, background=nullcontext)  # its caller holds a slot
        self._refs = tuple(refs)
        self._epoch = 0
        self._horizon: int = horizon
        self._added: tuple[int, ...] = ()
        self._group: str | None = None  # the layers written since the last snapshot, by the name of the first
        self._group_rows = self._group_bytes = 0
        self._changing_keys = inf
        self._unnamed: dict[str, LayerRef] = {}  # layers that no snapshot has named
        self._piece_failed = self._merge_failed = False
        self._merging_names: frozenset[str] = frozenset()
        # Layers that a merge or a restore is reading stay listed in checkpoints, or their files could be deleted.
        self._rebased = 0  # how often one layer replaced all that were there
        self._writing = threading.Lock()
        self._merging = threading.Lock()

    @property
    def refs(self) -> tuple[LayerRef, ...]:
        """The current durable layers."""
        return self._refs

    def materialise(self, scope: SnapshotScope) -> StateHandle:
        """Write what ``scope`` names and is not durable yet as one layer, and describe the whole state.

        Raises:
            CheckpointAborted: a later snapshot is durable already.
            LayerMissing: a cached block is lost.
            StorageFailed: the file system refused; nothing changed.
        """
        durable = False
        try:
            with self._snapshot_writer(scope) as writer, self._writing:
                self._check_order(scope)
                self._add(scope, writer)
                self._added = (*self._added, self._group_bytes)[-SETTLED_AFTER:]
                self._group, self._group_rows, self._group_bytes = None, 0, 0
                self._piece_failed = self._merge_failed = False
                durable = True
                self._drop_dead()
                self._unnamed = {name: ref for name, ref in self._unnamed.items() if ref not in self._refs}
                return self._handle(scope)
        finally:
            self._stack.end_snapshot(scope, durable=durable)

    def is_piece_due(self) -> bool:
        """Whether enough is not durable to write it now; not after a failure, until a snapshot has been written."""
        return not self._piece_failed and is_piece(self._stack.unwritten(), room=self.room)

    @property
    def room(self) -> float:
        """Rows that pieces may still have until the next snapshot."""
        return self._changing_keys / PIECE_SHARE - self._group_rows

    @property
    def changing(self) -> float:
        """About how many keys change: see ``changing_keys``."""
        return self._changing_keys

    def note_merge(self, rows: Sequence[int], merged: int) -> None:
        """Learn from the ``rows`` of each of some layers, which are ``merged`` rows now, how many keys change.

        Where they are few, a row that is written now changes again before the checkpoint: then it waits.
        """
        self._changing_keys = changing_keys(rows, merged)

    def write_piece(self) -> None:
        """Write what is not durable, if it may be. Its jobs take no slot: the caller holds one.

        If that fails, nothing changes: the next snapshot writes the same rows, and its checkpoint says what fails.

        Raises:
            LayerMissing: a cached block is lost.
        """
        # A snapshot waits for a piece while it keeps other work from slots. So a piece has its slot before it takes the
        # lock, and waits for nothing after.
        if not self._writing.acquire(blocking=False):
            return
        try:
            scope = self._stack.begin_piece()
            if scope is None:
                return
            self._piece_failed = True
            try:
                self._add(scope, self._piece_writer)
                self._piece_failed = False
                self._drop_dead()
            except LayerMissing:
                raise
            except Exception as error:
                uid = self._writer.layers_format.uid
                log.info("%s: A piece of state was not written; the next checkpoint writes it: %s", uid, error)
            finally:
                self._stack.end_snapshot(scope, durable=not self._piece_failed)
        finally:
            self._writing.release()

    def plan(self) -> Compaction | None:
        """The next merge of durable layers, if any is due; it names groups.

        None is due while a restore reads them, and after a refused write until a snapshot has been written. A group is
        all that was written for one snapshot, and counts as one layer.
        """
        if self._stack.loading or self._merge_failed:
            return None
        sized = [
            LayerSize(
                name=name,
                level=max(ref.level for ref in group),
                rows=sum(ref.rows for ref in group),
                bytes=sum(ref.bytes for ref in group),
            )
            for name, group in self._groups().items()
        ]
        return plan_durable_compaction(sized, live_rows=self._stack.rows, settled=self._has_settled())

    def compact(self, between: Callable[[], None] = lambda: None) -> None:
        """Carry out what ``plan`` says: write some durable layers as one, and refer to that instead.

        It leaves out only windows that were closed at the last durable snapshot: a snapshot that is being written still
        needs the rest. Snapshots may be written meanwhile; if one of them replaces all layers, the merge is discarded.
        If storage refuses a write, nothing changes: the layers are whole as they are.

        Args:
            between: called before each job, without a slot: a merge takes many, and other work must not wait for all.
        """
        with self._merging:
            with self._writing:
                plan, horizon, rebased = self.plan(), self._horizon, self._rebased
                if plan is None:
                    return
                members = [ref for name, group in self._groups().items() if name in plan.names for ref in group]
                self._merging_names = frozenset(ref.name for ref in members)
            merged = None

            def go_on() -> None:
                between()
                if self._stack.closed or self._rebased != rebased:
                    raise _OvertakenError

            reader = SliceReader(members, self._writer, horizon=horizon, between=go_on)
            try:
                stats = stats_of(members)
                stats = replace(stats, rows=min(stats.rows, self._stack.rows))
                merged = self._writer.write(
                    reader.rows, stats, horizon=horizon, live_rows=self._stack.rows, are_files=True
                )
            except _OvertakenError:
                pass
            except Exception as error:
                if self._rebased == rebased:  # else the files may be gone, and are not needed
                    self._give_up_merge(error)
            finally:
                self._end_merge(merged, rebased)
                reader.close()

    def _give_up_merge(self, error: Exception) -> None:
        """Have the merge tried again after the next snapshot, if storage refused a write; else raise the error."""
        if not is_refused_write(error):  # a layer that cannot be read has to be known before a restart needs it
            raise error
        self._merge_failed = True
        uid = self._writer.layers_format.uid
        log.warning("%s: Durable layers were not merged; that is tried again after a checkpoint: %s", uid, error)

    def _end_merge(self, merged: LayerRef | None, rebased: int) -> None:
        with self._writing:
            names, self._merging_names = self._merging_names, frozenset()
            if merged is not None:
                self._unnamed[merged.name] = merged
                if self._rebased == rebased:
                    self._refs = (*(ref for ref in self._refs if ref.name not in names), merged)
            self._drop_dead()

    def _groups(self) -> dict[str, list[LayerRef]]:
        groups: dict[str, list[LayerRef]] = {}
        for ref in self._refs:
            groups.setdefault(group_of(ref), []).append(ref)
        return groups

    @contextmanager
    def _snapshot_writer(self, scope: SnapshotScope) -> Iterator[LayerWriter]:
        """A writer whose first job has its slot already, if there are rows to write; each later job takes its own.

        So a snapshot has a slot before the lock, as a piece has. Where it waits for a piece, a merge would else begin
        as soon as that has ended, before this thread had planned its job.
        """
        with ExitStack() as slot:
            if any(layer.epoch > self._epoch for layer in scope.layers):
                slot.enter_context(self._writer.background())
            slots = chain((slot,), iter(self._writer.background, None))
            yield replace(self._writer, background=partial(next, slots))

    def _add(self, scope: SnapshotScope, writer: LayerWriter) -> None:
        """Write what is not durable of a snapshot or piece, and refer to it.

        Callers call ``_drop_dead`` once they have noted that it is durable: if that failed before, the stack would take
        for not written what is.
        """
        todo = [layer for layer in scope.layers if layer.epoch > self._epoch and layer.last_end > scope.horizon]
        added = (self._write(todo, scope.horizon, writer),) if todo else ()
        if scope.base > self._epoch:
            self._refs, self._rebased = (), self._rebased + 1
        self._refs = (*self._refs, *added)
        self._unnamed |= {ref.name: ref for ref in added}
        self._epoch, self._horizon = scope.epoch, scope.horizon

    def _drop_dead(self) -> None:
        """Drop layers whose rows are all dead. Delete files that no snapshot has named and nothing needs any more."""
        self._refs = tuple(ref for ref in self._refs if self._is_alive(ref))
        needed = {ref.name for ref in self._refs} | self._merging_names
        for name in self._unnamed.keys() - needed:
            self._writer.discard(self._unnamed.pop(name))

    def _is_alive(self, ref: LayerRef) -> bool:
        is_read = ref.name in self._merging_names or ref.name in self._stack.loading
        return is_read or bool(ref.rows and window_bounds(ref)[1] > self._horizon)

    def _write(self, layers: Sequence[Layer], horizon: int, writer: LayerWriter) -> LayerRef:
        stats = LayerStats(
            rows=sum(layer.rows for layer in layers),
            level=0,
            first_end=min(layer.first_end for layer in layers),
            last_end=max(layer.last_end for layer in layers),
        )
        plan = self._cached_union.stacked([layer.frame for layer in layers])
        rows = union_layers(layers) if plan is None else frame_of_plan(plan, writer.session)
        ref = writer.write(lambda _: rows, stats, horizon=horizon, live_rows=self._stack.rows)
        if len(layers) > 1 and stats.rows >= PIECE_ROWS:  # few rows say little
            self.note_merge([layer.rows for layer in layers], ref.rows)
        self._group_rows += ref.rows
        self._group_bytes += ref.bytes
        if self._group is None:
            self._group = ref.name
            return ref
        assert isinstance(ref.detail, dict)
        return replace(ref, detail={**ref.detail, GROUP: self._group})

    @cached_property
    def _cached_union(self) -> CachedUnion:
        return CachedUnion(self._writer.session)

    def _has_settled(self) -> bool:
        added = self._added
        return len(added) == SETTLED_AFTER and sum(added) <= SETTLED_BELOW * sum(ref.bytes for ref in self._refs)

    def _handle(self, scope: SnapshotScope) -> StateHandle:
        layers_format = self._writer.layers_format
        horizon = None if scope.horizon == MIN_WATERMARK else scope.horizon
        detail: dict[str, Json] = {"partitions": layers_format.partitions, "horizon": horizon, **scope.details}
        if layers_format.table is not None:
            detail["table"] = layers_format.table
        return StateHandle(kind=layers_format.kind, schema=layers_format.ddl(), layers=self._refs, detail=detail)

    def _check_order(self, scope: SnapshotScope) -> None:
        if scope.epoch <= self._epoch:
            msg = f"Snapshot {scope.epoch} is overtaken: snapshot {self._epoch} is durable already."
            raise CheckpointAborted(msg, uid=self._writer.layers_format.uid)


def group_of(ref: LayerRef) -> str:
    """What was written together with it for one snapshot, by name."""
    match ref.detail:
        case {"group": str(name)}:
            return name
        case _:
            return ref.name


class PendingLayers:
    """A snapshot that is not durable yet; see ``penstock.interfaces.operator.PendingSnapshot``."""

    def __init__(self, durable: DurableLayers, stack: Stack, scope: SnapshotScope) -> None:
        self._durable = durable
        self._stack = stack
        self._scope = scope
        self._lock = threading.Lock()
        self._taken = False

    def materialise(self) -> StateHandle:
        """Write what is not durable yet; see ``DurableLayers.materialise``."""
        if not self._take():
            msg = f"Snapshot {self._scope.epoch} was given up before it was written, since a later one was asked for."
            raise CheckpointAborted(msg)
        return self._durable.materialise(self._scope)

    def give_up(self) -> None:
        """Let go of the layers: the checkpoint was aborted before writing began. Later calls do nothing."""
        if self._take():
            self._stack.end_snapshot(self._scope, durable=False)

    def _take(self) -> bool:
        with self._lock:
            taken, self._taken = self._taken, True
        return not taken
