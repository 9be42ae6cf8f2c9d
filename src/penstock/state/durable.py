"""The durable layers of one step: written at snapshots, merged in the background."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.clock import MIN_WATERMARK
from penstock.errors import CheckpointAborted
from penstock.handles import LayerRef, StateHandle
from penstock.spark.blocks import CachedUnion, frame_of_plan
from penstock.state.compaction import Compaction, LayerSize, plan_durable_compaction
from penstock.state.layers import Layer, LayerStats, union_layers
from penstock.state.parquet import HashSlice, LayerWriter, SliceRows, files_of, scan_layers, stats_of, window_bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from penstock.handles import Json
    from penstock.state.layers import SnapshotScope
    from penstock.state.stack import Stack

SETTLED_AFTER, SETTLED_BELOW = 4, 0.01
"""The state has settled once this many snapshots added less than this part of all bytes."""


class DurableLayers:
    """The durable layers of a step. Snapshots add layers, compaction merges some; it holds no cached rows.

    Invariant: they merge to the same rows as the layers in memory up to the epoch of the last durable snapshot, closed
    windows aside. A snapshot adds at most one layer. Compaction reads files and writes a file, apart from compaction in
    memory; a checkpoint refers to the older layers until the new one is there. Files that a checkpoint has referred to
    are not deleted here: older checkpoints need them, and only the log condemns.

    Snapshots are written one after the other, merges too. Neither waits for the other, since a merge of all takes as
    long as many checkpoints. Readers never wait.

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
        self._cached_union = CachedUnion(writer.session)
        self._refs = tuple(refs)
        self._epoch = 0
        self._horizon: int = horizon
        self._added: tuple[int, ...] = ()
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
            with self._writing:
                self._check_order(scope)
                todo = [x for x in scope.layers if x.epoch > self._epoch and x.last_end > scope.horizon]
                added = (self._write(todo, scope.horizon),) if todo else ()
                if scope.base > self._epoch:
                    self._refs, self._rebased = (), self._rebased + 1
                self._refs = (*self._refs, *added)
                self._added = (*self._added, sum(ref.bytes for ref in added))[-SETTLED_AFTER:]
                self._epoch, self._horizon = scope.epoch, scope.horizon
                durable = True
                self._drop_dead(*added)
                return self._handle(scope)
        finally:
            self._stack.end_snapshot(scope, durable=durable)

    def plan(self) -> Compaction | None:
        """The next merge of durable layers, if any is due; none while a restore reads them."""
        if self._stack.loading:
            return None
        sized = [LayerSize(name=ref.name, level=ref.level, rows=ref.rows, bytes=ref.bytes) for ref in self._refs]
        return plan_durable_compaction(sized, live_rows=self._stack.rows, settled=self._has_settled())

    def compact(self) -> None:
        """Carry out what ``plan`` says: write some durable layers as one, and refer to that instead.

        It leaves out only windows that were closed at the last durable snapshot: a snapshot that is being written still
        needs the rest. Snapshots may be written meanwhile; if one of them replaces all layers, the merge is discarded.
        """
        with self._merging:
            with self._writing:
                plan, horizon, rebased = self.plan(), self._horizon, self._rebased
                if plan is None:
                    return
                members = [ref for ref in self._refs if ref.name in plan.names]
                self._merging_names = frozenset(plan.names)
            merged = None
            try:
                stats = stats_of(members)
                stats = replace(stats, rows=min(stats.rows, self._stack.rows))
                merged = self._writer.write(
                    self._rows_of_slices(members), stats, horizon=horizon, live_rows=self._stack.rows
                )
            except Exception:
                if self._rebased == rebased:  # else the files may be gone, and are not needed
                    raise
            finally:
                self._end_merge(merged, rebased)

    def _end_merge(self, merged: LayerRef | None, rebased: int) -> None:
        with self._writing:
            names, self._merging_names = self._merging_names, frozenset()
            if merged is not None and self._rebased == rebased:
                self._refs = (*(ref for ref in self._refs if ref.name not in names), merged)
            self._drop_dead(*(() if merged is None else (merged,)))

    def _drop_dead(self, *written: LayerRef) -> None:
        """Drop layers whose rows are all dead. Delete files of those just ``written``: no checkpoint names them."""
        self._refs = tuple(ref for ref in self._refs if self._is_alive(ref))
        for ref in written:
            if ref not in self._refs:
                self._writer.discard(ref)

    def _is_alive(self, ref: LayerRef) -> bool:
        is_read = ref.name in self._merging_names or ref.name in self._stack.loading
        return is_read or bool(ref.rows and window_bounds(ref)[1] > self._horizon)

    def _write(self, layers: Sequence[Layer], horizon: int) -> LayerRef:
        stats = LayerStats(
            rows=sum(layer.rows for layer in layers),
            level=0,
            first_end=min(layer.first_end for layer in layers),
            last_end=max(layer.last_end for layer in layers),
        )
        plan = self._cached_union.stacked([layer.frame for layer in layers])
        rows = union_layers(layers) if plan is None else frame_of_plan(plan, self._writer.session)
        return self._writer.write(lambda _: rows, stats, horizon=horizon, live_rows=self._stack.rows)

    def _rows_of_slices(self, refs: Sequence[LayerRef]) -> SliceRows:
        """Reads the rows of a slice, out of only the files that may have some."""
        by = self._writer.layers_format.slice_columns

        def rows_of(part: HashSlice) -> DataFrame | None:
            files = [(ref, found) for ref in refs if (found := files_of(ref, part, by))]
            if not files:
                return None
            writer = self._writer
            rows = scan_layers(writer.layers_format, writer.filesystem, writer.session, files)
            return rows.coalesce(writer.tasks)

        return rows_of

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
