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
from penstock.state.layers import CachedRows, EmissionLayers, Layer, LayerStats, SnapshotScope, release_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from penstock.handles import Json


# ----------------------------------------------------------------------------------------------------
# Brings durable rows back as one layer in memory, part by part: beside the data, or for whoever waits for them.
#
# Knows nothing of files, of how a part is read, or of the stack that the layer will lie in. Each part is one job.
# Whoever needs the rows takes the parts that nobody has taken yet, and waits for those that somebody has.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpectedLayer(LayerStats):
    """What is known of a layer before its rows are there.

    Attributes:
        name: of the layer.
        turn: see :attr:`penstock.state.layers.Layer.turn`.
        refs: names of the durable layers that it is made of.
    """

    name: str
    turn: int
    refs: frozenset[str]


class LayerLoader:
    """A layer on its way into memory.

    Args:
        coming: what is known of it.
        parts: each brings the rows of one part into memory, in one job.
        join: makes the frame of the whole of those of its parts, in order; no job.
    """

    def __init__(
        self,
        coming: ExpectedLayer,
        parts: Sequence[Callable[[], CachedRows]],
        join: Callable[[Sequence[DataFrame]], DataFrame],
    ) -> None:
        self.coming = coming
        self._parts = parts
        self._join = join
        self._taken = 0
        self._loaded: dict[int, CachedRows] = {}
        self._error: BaseException | None = None
        self._layer: Layer | None = None
        self._is_taken = self._ended = False
        self._changed = threading.Condition()

    @property
    def is_loaded(self) -> bool:
        """Whether all parts are there: then :meth:`load` runs nothing."""
        return len(self._loaded) == len(self._parts)

    def step(self) -> bool:
        """Load one part that nobody has taken; ``False`` if there is none.

        Raises:
            LayerMissing: a file is gone. Whoever waits for the layer is told, too.
        """
        with self._changed:
            number = self._taken
            if self._ended or self._error is not None or number == len(self._parts):
                return False
            self._taken += 1
        try:
            kept = self._parts[number]()
        except BaseException as error:
            if self._tell(error):
                raise
            return True
        if not self._keep(number, kept):
            kept.lease.release()
        return True

    def load(self) -> Layer | None:
        """The layer, all of whose rows are there; ``None`` if it has none, or nobody wants it any more.

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
                self._layer = self._made()
            return self._layer

    def hand_over(self) -> Layer | None:
        """What :meth:`load` gave. From now on its lease says who needs it: :meth:`end` frees nothing any more."""
        self._is_taken = self._layer is not None
        return self._layer

    def end(self) -> None:
        """Nobody wants it any more: what is there is freed, and what is still being loaded will be. Called once."""
        with self._changed:
            self._ended = True
            loaded = [] if self._is_taken else list(self._loaded.values())
            self._changed.notify_all()
        release_layers(loaded)

    def _tell(self, error: BaseException) -> bool:
        """Whether anybody cares: the files of what nobody wants any more may be gone."""
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

    def _made(self) -> Layer | None:
        parts = [self._loaded[number] for number in range(len(self._parts))]
        if not any(part.rows for part in parts):
            return None
        coming = self.coming
        return Layer(
            name=coming.name,
            level=coming.level,
            epoch=0,
            rows=sum(part.rows for part in parts),
            first_end=min(part.first_end for part in parts if part.rows),
            last_end=max(part.last_end for part in parts if part.rows),
            frame=self._join([part.frame for part in parts]),
            lease=RefCount(lambda: release_layers(parts)),
            turn=coming.turn,
        )


# ----------------------------------------------------------------------------------------------------
# The layers of one step in memory: which there are, and are due, dead, covered or on their way; runs no job itself.
#
# Every layer has an *epoch*: the number of the snapshot that first covers it. Snapshots not yet durable are
# *boundaries*. Two layers may be merged only if no boundary lies between them: so every layer is wholly covered by a
# snapshot or not at all, whatever compaction does meanwhile. For a step that sends on what has changed there is one
# more: each layer has a *turn*, the number of the emission that first tells of it, and the last emission is a boundary
# too.

MERGE_FAN_IN = 16
"""Layers of about the same size that are merged into one. A layer more costs whoever reads them the time for its rows
only, a merge is a job: with 4, each third batch of a small state paid for one.
"""
SLOWDOWN_LIMIT = 40
"""Layers from which the background merges whatever it can."""
STOP_LIMIT = 48
"""Layers at which the data path merges by itself before it adds one. Above ``SLOWDOWN_LIMIT``, so that a merge may
take as long as a few batches; beginning to merge earlier instead rewrites each row several times as often.
"""


class Stack:
    """The layers in memory. Every method is atomic; jobs are run by the callers, outside.

    Args:
        horizon: rows that end at or before it count no more: all their windows are closed.
        restored: brings the layer made of the durable ones, if any; its epoch is 0.
    """

    def __init__(self, *, horizon: int = MIN_WATERMARK, restored: LayerLoader | None = None) -> None:
        self._lock = threading.Lock()
        self._layers: list[Layer] = []
        self._awaited = restored
        self._is_whole = restored is None or len(restored.coming.refs) == 1
        self._least = restored.coming.first_end if restored else MAX_WATERMARK
        self._horizon: int = horizon
        self._durable = 0
        self._base = 0
        self._boundaries: list[int] = []
        self._epoch = 1
        self._turn = 1
        self._numbers = itertools.count(1)
        self._closed = False

    @property
    def horizon(self) -> int:
        """Rows that end at or before it count no more."""
        return self._horizon

    @property
    def epoch(self) -> int:
        """The number of the next snapshot: that of layers added now."""
        return self._epoch

    @property
    def turn(self) -> int:
        """The number of the next emission: that of layers added now, if the step sends on changes."""
        return self._turn

    @property
    def height(self) -> int:
        """How many layers there are, with the one on its way."""
        with self._lock:
            return len(self._all())

    @property
    def rows(self) -> int:
        """How many rows there are at most, once merged."""
        with self._lock:
            coming = self._awaited.coming.rows if self._awaited else 0
            return coming + sum(layer.rows for layer in self._layers)

    @property
    def awaits(self) -> frozenset[str]:
        """Names of the durable layers that a layer on its way is made of; none if none is."""
        awaited = self._awaited
        return awaited.coming.refs if awaited else frozenset()

    def bring(self) -> None:
        """Load a part of the layer that is on its way, in one job; put it on the stack with the last part."""
        awaited = self._awaited
        if awaited is not None and (not awaited.step() or awaited.is_loaded):
            self._take(awaited)

    @property
    def closed(self) -> bool:
        """Whether it was closed: it takes no more layers."""
        return self._closed

    def next_name(self) -> str:
        """A name for a new layer, never given again in this process."""
        return f"m{next(self._numbers):08d}"

    def add(self, layer: Layer) -> bool:
        """Put a batch's layer on top; ``False`` (and ``layer`` freed) if closed meanwhile."""
        with self._lock:
            taken = not self._closed
            if taken:
                self._is_whole = not self._all()
                self._least = layer.first_end if self._is_whole else min(self._least, layer.first_end)
                self._layers.append(layer)
        if not taken:
            layer.lease.release()
        return taken

    def lease_due(self, first: int, last: int) -> tuple[tuple[Layer, ...], RefCount]:
        """The layers that may have rows ending in ``[first, last]``, kept until the lease is released."""
        self._bring(first, last)
        with self._lock:
            return self._lease([layer for layer in self._layers if layer.spans(first, last)])

    def holds(self, first: int, last: int) -> bool:
        """Whether a layer may have rows ending in ``[first, last]``."""
        with self._lock:
            return any(layer.spans(first, last) for layer in self._all())

    def splits(self, bound: int) -> bool:
        """Whether rows that ought to be one may lie apart, in memory or in what is durable, some ending by ``bound``.

        They do from the second layer on, whatever compaction in memory does, until one layer takes the place of all.
        """
        with self._lock:
            return not self._is_whole and self._least <= bound

    def has_news(self, first: int, last: int) -> bool:
        """Whether a layer that was not told of yet may have rows ending in ``[first, last]``."""
        with self._lock:
            return any(layer.turn == self._turn and layer.spans(first, last) for layer in self._all())

    def tell(self, first: int, last: int, *coming: Layer) -> EmissionLayers:
        """All that may have rows ending in ``[first, last]``, what is new apart; from now on nothing is new.

        With them those that will be added, when what is told has been run.
        """
        self._bring(first, last)
        with self._lock:
            found = [layer for layer in (*self._layers, *coming) if layer.spans(first, last)]
            layers, lease = self._lease(found)
            turn, self._turn = self._turn, self._turn + 1
        new = tuple(layer for layer in layers if layer.turn == turn)
        return EmissionLayers(old=tuple(layer for layer in layers if layer.turn != turn), new=new, lease=lease)

    def close_windows(self, horizon: int) -> None:
        """Raise the horizon and let go of layers that are wholly below it."""
        with self._lock:
            self._horizon = max(self._horizon, horizon)
            dead = [layer for layer in self._layers if layer.last_end <= self._horizon]
            self._layers = [layer for layer in self._layers if layer.last_end > self._horizon]
            awaited = self._awaited
            in_vain = awaited is not None and awaited.coming.last_end <= self._horizon
            self._awaited = None if in_vain else awaited
        release_layers(dead)
        if awaited is not None and in_vain:
            awaited.end()

    def sized(self) -> tuple[LayerSize, ...]:
        """What the compaction policy looks at."""
        with self._lock:
            return tuple(
                LayerSize(name=layer.name, level=layer.level, rows=layer.rows, group=self._group(layer))
                for layer in self._layers
            )

    def lease_named(self, names: Sequence[str]) -> tuple[tuple[Layer, ...], RefCount]:
        """Those of the named layers that are still there, kept until the lease is released."""
        with self._lock:
            return self._lease([layer for layer in self._layers if layer.name in names])

    def replace(self, members: Sequence[Layer], merged: Layer | None) -> bool:
        """Put ``merged`` in the place of ``members`` at once; ``False`` (and ``merged`` freed) if closed meanwhile.

        Members that died meanwhile are no longer there; their rows in ``merged`` are below the horizon, so dead too.
        If living ones are gone another layer has their rows (see :meth:`rebase`), and nothing changes either.
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
        """Put ``merged``, which has the rows of all layers, in the place of all; ``False`` (and freed) if closed.

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

    def cover(self, notes: Mapping[str, Json] | None = None) -> SnapshotScope:
        """Name the layers that the next checkpoint must make durable, and begin a new epoch. Takes no time.

        Args:
            notes: what the step wants to find again beside its layers.
        """
        with self._lock:
            epoch, self._epoch = self._epoch, self._epoch + 1
            self._boundaries.append(epoch)
            layers, lease = self._lease([layer for layer in self._layers if layer.epoch > self._durable])
            return SnapshotScope(
                epoch=epoch, base=self._base, horizon=self._horizon, layers=layers, lease=lease, notes=notes or {}
            )

    def covered(self, cover: SnapshotScope, *, durable: bool) -> None:
        """The snapshot was made durable, or given up: its boundary falls and its hold on layers ends."""
        with self._lock:
            if cover.epoch not in self._boundaries:
                msg = f"snapshot {cover.epoch} was ended twice"
                raise InternalError(msg)
            self._boundaries.remove(cover.epoch)
            if durable:
                self._durable = max(self._durable, cover.epoch)
        cover.lease.release()

    def close(self) -> None:
        """Let go of all layers; leased ones are freed by the last holder."""
        with self._lock:
            self._closed = True
            layers, self._layers = self._layers, []
            awaited, self._awaited = self._awaited, None
        release_layers(layers)
        if awaited is not None:
            awaited.end()

    def _bring(self, first: int, last: int) -> None:
        """If the layer on its way may have rows ending in ``[first, last]``, wait until it is here."""
        awaited = self._awaited
        if awaited is not None and awaited.coming.spans(first, last):
            self._take(awaited)

    def _take(self, awaited: LayerLoader) -> None:
        """Wait for the layer. Whoever is first puts it on the stack."""
        awaited.load()
        with self._lock:
            if self._awaited is not awaited:
                return
            self._awaited = None
            layer = awaited.hand_over()
            self._layers += [layer] if layer else []
        if layer is None:
            awaited.end()

    def _all(self) -> Sequence[Layer | ExpectedLayer]:
        return (*self._layers, *((self._awaited.coming,) if self._awaited else ()))

    def _group(self, layer: Layer) -> int:
        """Number of boundaries below the layer: the durable ones first, then each pending snapshot's, then the new.

        Epochs and turns both rise with time, so layers of one number have no boundary of either kind between them.
        """
        below = sum(1 for boundary in (self._durable, *self._boundaries) if layer.epoch > boundary)
        return below + (layer.turn == self._turn)

    def _lease(self, layers: Sequence[Layer]) -> tuple[tuple[Layer, ...], RefCount]:
        for layer in layers:
            layer.lease.retain(1)
        return tuple(layers), RefCount(partial(release_layers, tuple(layers)))
