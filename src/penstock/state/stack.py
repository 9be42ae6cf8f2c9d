"""The layers in memory: epochs, leases, restored parts on their way."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK
from penstock.elements import RefCount
from penstock.errors import InternalError
from penstock.state.compaction import LayerSize
from penstock.state.layers import (
    CachedRows,
    EmissionLayers,
    Layer,
    LayerLabel,
    LayerStats,
    SnapshotScope,
    join_rows,
    layer_of_rows,
    release_layers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from penstock.handles import Json


# ---- a layer on its way into memory ----------------------------------------------------------------------------------
# Each part is one job. The background loads parts while data flows. A step that needs the rows loads the parts that no
# thread has taken yet, and waits for those that are being loaded.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpectedLayer(LayerStats):
    """What is known of a layer before its rows are in memory.

    Attributes:
        name: of the layer.
        emission_number: see ``penstock.state.layers.Layer.emission_number``.
        refs: names of the durable layers that it is made of.
    """

    name: str
    emission_number: int
    refs: frozenset[str]


class LayerLoader:
    """Loads durable rows as one layer in memory, part by part.

    Args:
        expected: what is known of the layer.
        parts: each loads the rows of one part, in one job.
        join: makes one frame of the parts' frames, in order; runs no job.
    """

    def __init__(
        self,
        expected: ExpectedLayer,
        parts: Sequence[Callable[[], CachedRows]],
        join: Callable[[Sequence[DataFrame]], DataFrame],
    ) -> None:
        self.expected = expected
        self._parts = parts
        self._join = join
        self._taken = 0
        self._loaded: dict[int, CachedRows] = {}
        self._error: BaseException | None = None
        self._layer: Layer | None = None
        self._is_handed_over = self._ended = False
        self._changed = threading.Condition()

    @property
    def is_loaded(self) -> bool:
        """Whether all parts are loaded: then ``load`` runs nothing."""
        return len(self._loaded) == len(self._parts)

    def step(self) -> bool:
        """Load one part that no thread has taken; ``False`` if there is none.

        Raises:
            LayerMissing: a file is gone. Threads that wait in ``load`` get the error too.
        """
        with self._changed:
            number = self._taken
            if self._ended or self._error is not None or number == len(self._parts):
                return False
            self._taken += 1
        try:
            kept = self._parts[number]()
        except BaseException as error:
            if self._fail(error):
                raise
            return True
        if not self._keep(number, kept):
            kept.lease.release()
        return True

    def load(self) -> Layer | None:
        """The layer with all its rows; ``None`` if it has none, or after ``end``.

        Raises:
            LayerMissing: a file is gone.
        """
        while self.step():
            pass
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._error is not None or self.is_loaded)
            if self._error is not None:
                raise self._error
            if self._layer is None and not self._ended:
                self._layer = self._build()
            return self._layer

    def hand_over(self) -> Layer | None:
        """The layer that ``load`` returned. From now on its lease frees it, and ``end`` does not."""
        self._is_handed_over = self._layer is not None
        return self._layer

    def end(self) -> None:
        """Give the layer up: free what is loaded, and what is still being loaded as it comes. Called once."""
        with self._changed:
            self._ended = True
            loaded = [] if self._is_handed_over else list(self._loaded.values())
            self._changed.notify_all()
        release_layers(loaded)

    def _fail(self, error: BaseException) -> bool:
        """Keep the error for waiting threads; ``False`` after ``end``, when files may rightly be gone."""
        with self._changed:
            if not self._ended:
                self._error = error
            self._changed.notify_all()
            return not self._ended

    def _keep(self, number: int, kept: CachedRows) -> bool:
        with self._changed:
            if not self._ended:
                self._loaded[number] = kept
            self._changed.notify_all()
            return not self._ended

    def _build(self) -> Layer | None:
        parts = [self._loaded[number] for number in range(len(self._parts))]
        if not any(part.rows for part in parts):
            return None
        expected = self.expected
        label = LayerLabel(name=expected.name, level=expected.level, epoch=0, emission_number=expected.emission_number)
        return layer_of_rows(join_rows(parts, self._join([part.frame for part in parts])), label)


# ---- the stack -------------------------------------------------------------------------------------------------------
# Every layer has an *epoch*: the number of the first snapshot that has it. Snapshots that are not yet durable are
# *boundaries*. Two layers may be merged only if no boundary lies between them: so a snapshot has all of a layer or
# nothing of it, whatever compaction does meanwhile. In a step that sends changes each layer also has an *emission
# number*: that of the first emission that has it. There the last emission is a boundary too.

MERGE_FAN_IN = 16
"""Number of layers of about the same size that are merged into one."""
# Reading one more layer costs the time for its rows only, a merge is a job: with 4, each third batch of a small state
# paid for one.
SLOWDOWN_LIMIT = 40
"""Number of layers from which the background merges whatever it can."""
STOP_LIMIT = 48
"""Number of layers at which the data path itself merges before it adds one."""
# Above SLOWDOWN_LIMIT, so that a merge may take as long as a few batches. To begin merging earlier instead would
# rewrite each row several times as often.


class Stack:
    """The layers of one step in memory. Every method is atomic; callers run jobs, outside of it.

    Args:
        horizon: rows that end at or before it do not count: all their windows are closed.
        restored: loads the layer made of the durable ones, if any; its epoch is 0.
    """

    def __init__(self, *, horizon: int = MIN_WATERMARK, restored: LayerLoader | None = None) -> None:
        self._lock = threading.Lock()
        self._layers: list[Layer] = []
        self._loader = restored
        # A durable layer that an older penstock wrote may have sessions of one key that touch, and are one now.
        self._is_whole = restored is None
        self._least = restored.expected.first_end if restored else MAX_WATERMARK
        self._horizon: int = horizon
        self._snapshot_horizon: int = horizon
        self._advance = 0
        self._durable = 0
        self._base = 0
        self._boundaries: list[int] = []
        self._epoch = 1
        self._emission_number = 1
        self._numbers = itertools.count(1)
        self._closed = False

    @property
    def horizon(self) -> int:
        """Rows that end at or before it do not count."""
        return self._horizon

    @property
    def epoch(self) -> int:
        """Number of the next snapshot or piece, and epoch of layers added now."""
        return self._epoch

    @property
    def emission_number(self) -> int:
        """Number of the next emission, and of layers added now if the step sends changes."""
        return self._emission_number

    @property
    def height(self) -> int:
        """How many layers there are, with the one that is being loaded."""
        with self._lock:
            return len(self._all())

    @property
    def rows(self) -> int:
        """At most how many rows there are once merged."""
        with self._lock:
            loading = self._loader.expected.rows if self._loader else 0
            return loading + sum(layer.rows for layer in self._layers)

    @property
    def loading(self) -> frozenset[str]:
        """Names of the durable layers that are being loaded."""
        loader = self._loader
        return loader.expected.refs if loader else frozenset()

    def load_part(self) -> None:
        """Load one part of the restored layer, in one job; the last part puts the layer on the stack."""
        loader = self._loader
        if loader is not None and (not loader.step() or loader.is_loaded):
            self._take(loader)

    @property
    def closed(self) -> bool:
        """Whether it was closed; then it takes no more layers."""
        return self._closed

    def next_name(self) -> str:
        """A name for a new layer, used once in this process."""
        return f"m{next(self._numbers):08d}"

    def add(self, layer: Layer) -> bool:
        """Put a batch's layer on top; ``False``, and ``layer`` is freed, if the stack was closed meanwhile.

        Its epoch is that of now: a piece may have begun while the layer was being made, and does not have it.
        """
        with self._lock:
            taken = not self._closed
            if taken:
                self._is_whole = not self._all()
                self._least = layer.first_end if self._is_whole else min(self._least, layer.first_end)
                self._layers.append(replace(layer, epoch=self._epoch))
        if not taken:
            layer.lease.release()
        return taken

    def lease_due(self, first: int, last: int) -> tuple[tuple[Layer, ...], RefCount]:
        """The layers that may have rows ending in ``[first, last]``, kept until the lease is released."""
        self._load(first, last)
        with self._lock:
            return self._lease([layer for layer in self._layers if layer.spans(first, last)])

    def may_have_rows(self, first: int, last: int) -> bool:
        """Whether a layer may have rows ending in ``[first, last]``, loaded or not."""
        with self._lock:
            return any(layer.spans(first, last) for layer in self._all())

    def may_split(self, bound: int) -> bool:
        """Whether rows of one key and window that end by ``bound`` may be in several layers, in memory or on disk.

        They may be from the second layer on, whatever compaction in memory does, until one layer replaces all.
        """
        with self._lock:
            return not self._is_whole and self._least <= bound

    def has_unsent(self, first: int, last: int) -> bool:
        """Whether a layer that no emission had yet may have rows ending in ``[first, last]``."""
        with self._lock:
            return any(
                layer.emission_number == self._emission_number and layer.spans(first, last) for layer in self._all()
            )

    def begin_emission(self, first: int, last: int, *coming: Layer) -> EmissionLayers:
        """Layers that may have rows ending in ``[first, last]``, old ones and new ones; from now on none is new.

        Args:
            first: least end of rows.
            last: greatest end of rows.
            coming: layers that will be added when the emission's job has run; they count too.
        """
        self._load(first, last)
        with self._lock:
            found = [layer for layer in (*self._layers, *coming) if layer.spans(first, last)]
            layers, lease = self._lease(found)
            number, self._emission_number = self._emission_number, self._emission_number + 1
        new = tuple(layer for layer in layers if layer.emission_number == number)
        return EmissionLayers(
            old=tuple(layer for layer in layers if layer.emission_number != number), new=new, lease=lease
        )

    def close_windows(self, horizon: int) -> None:
        """Raise the horizon, and release layers that are wholly below it."""
        with self._lock:
            self._horizon = max(self._horizon, horizon)
            if self._snapshot_horizon == MIN_WATERMARK:  # the first watermark says nothing of how fast it rises
                self._snapshot_horizon = self._horizon
            dead = [layer for layer in self._layers if layer.last_end <= self._horizon]
            self._layers = [layer for layer in self._layers if layer.last_end > self._horizon]
            loader = self._loader
            is_dead = loader is not None and loader.expected.last_end <= self._horizon
            self._loader = None if is_dead else loader
        release_layers(dead)
        if loader is not None and is_dead:
            loader.end()

    def sized(self) -> tuple[LayerSize, ...]:
        """The layers as the compaction policy sees them."""
        with self._lock:
            return self._sizes(self._layers)

    def unwritten(self) -> tuple[LayerSize, ...]:
        """The layers that ``begin_piece`` would have made durable, but for those that are not worth a piece.

        If the horizon rises as much until the next snapshot as between the last two, layers below it are dead by then.
        If it has risen much more already, it is expected to rise as much again: the first snapshot may be an hour away.
        """
        with self._lock:
            risen = self._horizon - self._snapshot_horizon
            expected = self._snapshot_horizon + (2 * risen if risen > 2 * self._advance else self._advance)
            alive = [layer for layer in self._not_durable() if layer.last_end > expected]
            return self._sizes(alive) if self._may_write_pieces() else ()

    def lease_named(self, names: Sequence[str]) -> tuple[tuple[Layer, ...], RefCount]:
        """The named layers that are still there, kept until the lease is released."""
        with self._lock:
            return self._lease([layer for layer in self._layers if layer.name in names])

    def replace(self, members: Sequence[Layer], merged: Layer | None) -> bool:
        """Replace ``members`` by ``merged`` at once; ``False``, and ``merged`` is freed, if that is too late.

        It is if the stack was closed meanwhile, or if members that are not dead are gone: another layer has their rows
        then, see ``rebase``. Members that died meanwhile are no longer there; their rows in ``merged`` are dead
        too.
        """
        gone = {layer.name for layer in members}
        with self._lock:
            held = {layer.name for layer in self._layers}
            elsewhere = any(layer.name not in held and layer.last_end > self._horizon for layer in members)
            taken = not self._closed and not elsewhere
            replaced = [layer for layer in self._layers if layer.name in gone]
            if taken:
                self._layers = [layer for layer in self._layers if layer.name not in gone]
                alive = merged is not None and merged.last_end > self._horizon
                if merged and alive:
                    self._layers.append(merged)
        if taken:
            release_layers(replaced)
        if merged and not (taken and alive):
            merged.lease.release()
        return taken

    def rebase(self, merged: Layer | None) -> bool:
        """Replace all layers by ``merged``, which has all their rows; ``False``, and it is freed, if closed.

        The next snapshot writes it whole, and refers to nothing older.
        """
        with self._lock:
            taken = not self._closed
            replaced = self._layers if taken else []
            if taken:
                self._layers = [replace(merged, epoch=self._epoch)] if merged else []
                self._base = self._epoch
                self._is_whole, self._least = True, merged.first_end if merged else MAX_WATERMARK
        release_layers(replaced)
        if merged and not taken:
            merged.lease.release()
        return taken

    def begin_snapshot(self, details: Mapping[str, Json] | None = None) -> SnapshotScope:
        """The layers that the next checkpoint must make durable; begins a new epoch. Runs nothing.

        Args:
            details: what the step records in addition to its layers.
        """
        with self._lock:
            before, self._snapshot_horizon = self._snapshot_horizon, self._horizon
            self._advance = self._horizon - before if before != MIN_WATERMARK else 0
            return self._begin(details or {})

    def begin_piece(self) -> SnapshotScope | None:
        """What is not durable, to be made durable before a checkpoint asks: a snapshot that no checkpoint names.

        ``None`` while a snapshot is named and not yet written: its checkpoint must not get what came after the barrier.
        ``None``, too, once one layer has replaced all: each time that happens, what was written counts no more.
        """
        with self._lock:
            return self._begin({}) if self._may_write_pieces() else None

    def end_snapshot(self, scope: SnapshotScope, *, durable: bool) -> None:
        """Remove the boundary of a snapshot that is durable or given up, and release its layers."""
        with self._lock:
            if scope.epoch not in self._boundaries:
                msg = f"Snapshot {scope.epoch} was ended twice."
                raise InternalError(msg)
            self._boundaries.remove(scope.epoch)
            if durable:
                self._durable = max(self._durable, scope.epoch)
        scope.lease.release()

    def close(self) -> None:
        """Release all layers; the last holder of a leased one frees it."""
        with self._lock:
            self._closed = True
            layers, self._layers = self._layers, []
            loader, self._loader = self._loader, None
        release_layers(layers)
        if loader is not None:
            loader.end()

    def _load(self, first: int, last: int) -> None:
        """Load the restored layer if it may have rows ending in ``[first, last]``."""
        loader = self._loader
        if loader is not None and loader.expected.spans(first, last):
            self._take(loader)

    def _take(self, loader: LayerLoader) -> None:
        """Wait for the restored layer. The first thread to see it puts it on the stack."""
        loader.load()
        with self._lock:
            if self._loader is not loader:
                return
            self._loader = None
            layer = loader.hand_over()
            self._layers += [layer] if layer else []
        if layer is None:
            loader.end()

    def _all(self) -> Sequence[Layer | ExpectedLayer]:
        return (*self._layers, *((self._loader.expected,) if self._loader else ()))

    def _begin(self, details: Mapping[str, Json]) -> SnapshotScope:
        epoch, self._epoch = self._epoch, self._epoch + 1
        self._boundaries.append(epoch)
        layers, lease = self._lease(self._not_durable())
        return SnapshotScope(
            epoch=epoch, base=self._base, horizon=self._horizon, layers=layers, lease=lease, details=details
        )

    def _may_write_pieces(self) -> bool:
        return not (self._boundaries or self._base or self._closed)

    def _not_durable(self) -> list[Layer]:
        return [layer for layer in self._layers if layer.epoch > self._durable]

    def _sizes(self, layers: Sequence[Layer]) -> tuple[LayerSize, ...]:
        return tuple(
            LayerSize(name=layer.name, level=layer.level, rows=layer.rows, group=self._group(layer)) for layer in layers
        )

    def _group(self, layer: Layer) -> int:
        """Number of boundaries below the layer: the last durable snapshot, each pending one, the last emission.

        Epochs and emission numbers both rise with time, so layers of one group have no boundary between them.
        """
        below = sum(1 for boundary in (self._durable, *self._boundaries) if layer.epoch > boundary)
        return below + (layer.emission_number == self._emission_number)

    def _lease(self, layers: Sequence[Layer]) -> tuple[tuple[Layer, ...], RefCount]:
        for layer in layers:
            layer.lease.retain(1)
        return tuple(layers), RefCount(partial(release_layers, tuple(layers)))
