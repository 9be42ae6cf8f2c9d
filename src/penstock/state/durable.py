"""The durable layers of one step: what a checkpoint refers to, kept few without rewriting all; holds no cached rows.

Invariant: they merge to the same rows as the layers in memory up to the epoch of the last snapshot made durable
(closed windows aside). What a snapshot adds is one layer. Compaction here reads files and writes a file, apart from
compaction in memory; a checkpoint refers to the older layers until the new one is there. What a checkpoint has referred
to is not deleted here: older ones need it, and only the log condemns.
"""

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
"""So many snapshots have added less than that part of all bytes: then little changes any more."""
MERGED_SHARE = 4
"""So many times as many rows has a slice of a merge: for each slice all of the small layers' files are read again."""


class DurableLayers:
    """The list of durable layers and the writing of more.

    Snapshots are written one after the other, merges too; neither waits for the other, for a merge of all takes as long
    as many checkpoints. Readers never wait.

    Args:
        stack: the layers in memory.
        writer: makes rows durable.
        refs: the layers restored from, each of which says which columns it has if they are not the writer's.
        horizon: the one restored.
    """

    def __init__(
        self, stack: Stack, writer: LayerWriter, refs: Sequence[LayerRef] = (), *, horizon: int = MIN_WATERMARK
    ) -> None:
        self._stack = stack
        self._writer = writer
        self._arranger = CachedUnion(writer.session)
        self._refs = tuple(refs)
        self._epoch = 0
        self._horizon: int = horizon
        self._added: tuple[int, ...] = ()
        self._merged: frozenset[str] = frozenset()
        """Names of the layers that a merge is reading: a checkpoint lists them, or their files could be deleted. So it
        does with those that a restore is reading."""
        self._rebased = 0
        """How often one layer took the place of all that were there."""
        self._writing = threading.Lock()
        self._merging = threading.Lock()

    @property
    def refs(self) -> tuple[LayerRef, ...]:
        """The durable layers now."""
        return self._refs

    def materialise(self, cover: SnapshotScope) -> StateHandle:
        """Write what ``cover`` names and is not durable yet as one layer, and describe the whole state.

        Raises:
            CheckpointAborted: a later snapshot is durable already.
            LayerMissing: a cached block is lost.
            StorageFailed: the file system refused; nothing changed.
        """
        durable = False
        try:
            with self._writing:
                self._check_order(cover)
                todo = [x for x in cover.layers if x.epoch > self._epoch and x.last_end > cover.horizon]
                added = (self._write(todo, cover.horizon),) if todo else ()
                if cover.base > self._epoch:
                    self._refs, self._rebased = (), self._rebased + 1
                self._refs = (*self._refs, *added)
                self._added = (*self._added, sum(ref.bytes for ref in added))[-SETTLED_AFTER:]
                self._epoch, self._horizon = cover.epoch, cover.horizon
                durable = True
                self._keep_what_counts(*added)
                return self._handle(cover)
        finally:
            self._stack.covered(cover, durable=durable)

    def plan(self) -> Compaction | None:
        """Which durable layers to merge next, if any; none while a restore reads them."""
        if self._stack.awaits:
            return None
        sized = [LayerSize(name=ref.name, level=ref.level, rows=ref.rows, bytes=ref.bytes) for ref in self._refs]
        return plan_durable_compaction(sized, live_rows=self._stack.rows, settled=self._has_settled())

    def compact(self) -> None:
        """Carry out what :meth:`plan` says: read some durable layers, write them as one, refer to that instead.

        Only what was closed at the last durable snapshot is left out: one that is being written still needs the rest.
        Snapshots may be written meanwhile. If with one of them another layer took the place of all, this was in vain.
        """
        with self._merging:
            with self._writing:
                plan, horizon, rebased = self.plan(), self._horizon, self._rebased
                if plan is None:
                    return
                members = [ref for ref in self._refs if ref.name in plan.names]
                self._merged = frozenset(plan.names)
            merged = None
            try:
                extent = stats_of(members)
                extent = replace(extent, rows=min(extent.rows, self._stack.rows))
                merged = self._writer.write(self._reading(members), extent, horizon=horizon, share=MERGED_SHARE)
            except Exception:
                if self._rebased == rebased:  # else files may be gone that nobody needs
                    raise
            finally:
                self._end_merge(merged, rebased)

    def _end_merge(self, merged: LayerRef | None, rebased: int) -> None:
        with self._writing:
            names, self._merged = self._merged, frozenset()
            if merged is not None and self._rebased == rebased:
                self._refs = (*(ref for ref in self._refs if ref.name not in names), merged)
            self._keep_what_counts(*(() if merged is None else (merged,)))

    def _keep_what_counts(self, *written: LayerRef) -> None:
        """Drop other layers. Of those just ``written``, which no checkpoint has named, the files go at once."""
        self._refs = tuple(ref for ref in self._refs if self._counts(ref))
        for ref in written:
            if ref not in self._refs:
                self._writer.discard(ref)

    def _counts(self, ref: LayerRef) -> bool:
        is_read = ref.name in self._merged or ref.name in self._stack.awaits
        return is_read or bool(ref.rows and window_bounds(ref)[1] > self._horizon)

    def _write(self, layers: Sequence[Layer], horizon: int) -> LayerRef:
        extent = LayerStats(
            rows=sum(layer.rows for layer in layers),
            level=0,
            first_end=min(layer.first_end for layer in layers),
            last_end=max(layer.last_end for layer in layers),
        )
        plan = self._arranger.above([layer.frame for layer in layers])
        rows = union_layers(layers) if plan is None else frame_of_plan(plan, self._writer.session)
        return self._writer.write(lambda _: rows, extent, horizon=horizon)

    def _reading(self, refs: Sequence[LayerRef]) -> SliceRows:
        """The rows of a slice, out of no more files than may have some."""
        by = self._writer.layers_format.sliced

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

    def _handle(self, cover: SnapshotScope) -> StateHandle:
        layers_format = self._writer.layers_format
        horizon = None if cover.horizon == MIN_WATERMARK else cover.horizon
        detail: dict[str, Json] = {"partitions": layers_format.partitions, "horizon": horizon, **cover.notes}
        if layers_format.table is not None:
            detail["table"] = layers_format.table
        return StateHandle(kind=layers_format.kind, schema=layers_format.ddl(), layers=self._refs, detail=detail)

    def _check_order(self, cover: SnapshotScope) -> None:
        if cover.epoch <= self._epoch:
            msg = f"snapshot {cover.epoch} is overtaken: snapshot {self._epoch} is durable already"
            raise CheckpointAborted(msg, uid=self._writer.layers_format.uid)


class PendingLayers:
    """A snapshot by name; see :class:`penstock.interfaces.operator.PendingSnapshot`."""

    def __init__(self, durable: DurableLayers, stack: Stack, cover: SnapshotScope) -> None:
        self._durable = durable
        self._stack = stack
        self._cover = cover
        self._lock = threading.Lock()
        self._taken = False

    def materialise(self) -> StateHandle:
        """Write what is not durable yet; see :meth:`DurableLayers.materialise`."""
        if not self._take():
            msg = f"snapshot {self._cover.epoch} was given up before it was written: a later one was asked for"
            raise CheckpointAborted(msg)
        return self._durable.materialise(self._cover)

    def give_up(self) -> None:
        """The checkpoint was aborted before writing began: let go of the layers. Later calls do nothing."""
        if self._take():
            self._stack.covered(self._cover, durable=False)

    def _take(self) -> bool:
        with self._lock:
            taken, self._taken = self._taken, True
        return not taken
