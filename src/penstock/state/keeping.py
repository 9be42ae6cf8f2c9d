"""Runs frames into layers of cached rows: at once, or by the way in the job of whoever reads them first.

Knows nothing of the stack and of what the rows mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.elements import Lease
from penstock.errors import InternalError
from penstock.ids import BEGINNING, END_OF_TIME
from penstock.state.blocks import Figures, LazyCut, blocks_needed, cut, free
from penstock.state.layer import EXTENT, Kept, Layer, LayerFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from penstock.state.lean import LeanSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """What a layer to be made is called, and where it stands among the others: see :class:`Layer`."""

    name: str
    level: int
    epoch: int
    turn: int = 0


class LazyLayer:
    """A layer whose rows are there once a job has read them, whoever's that is.

    Args:
        layers_format: of its rows.
        frame: of them, merged and hashed.
        read: tells :data:`EXTENT`, or bounds of it, after the job, if it can.
        tag: of the layer.
        beside: see :class:`LazyCut`.

    Attributes:
        layer: to make results of; nothing is known of its extent. Its lease is shared with whoever runs them.
    """

    def __init__(
        self,
        layers_format: LayerFormat,
        frame: DataFrame,
        read: Callable[[], Mapping[str, Any] | None],
        tag: Tag,
        *,
        beside: LeanSession,
    ) -> None:
        self._format = layers_format
        self._read = read
        self._cut = LazyCut(frame, beside)
        kept = self._cut.frame
        anything = Kept(frame=kept, rows=0, first_end=BEGINNING, last_end=END_OF_TIME, lease=Lease(lambda: free(kept)))
        self.layer = _layer(anything, tag)

    def finish(self) -> Layer | None:
        """The layer as its rows are; ``None``, and freed, if it has none. Runs a job if none has read them.

        What else was observed below it can be read after this.

        Raises:
            LayerMissing: a block is lost of a layer that it is made of.
        """
        with blocks_needed(self._format.uid):
            self._cut.finish()
            rows, first, last = _extent(self._read() or _ask(self._cut.frame, self._format), self._format)
        if not rows:
            self.layer.lease.release()
            return None
        return replace(self.layer, rows=rows, first_end=first, last_end=last)


def build(layers_format: LayerFormat, frame: DataFrame, tag: Tag) -> Layer | None:
    """Run ``frame``, whose rows are merged and hashed, into a layer: one job. ``None`` if it has no rows.

    Raises:
        LayerMissing: ``frame`` reads another layer, and a block of that is lost.
    """
    figures = Figures(EXTENT)
    return keep(layers_format, figures.watch(frame, layers_format.extent), figures.read, tag)


def keep(
    layers_format: LayerFormat, watched: DataFrame, read: Callable[[], Mapping[str, Any] | None], tag: Tag
) -> Layer | None:
    """As :func:`build`, of a frame whose extent is observed: ``read`` tells :data:`EXTENT` after its job, if it can."""
    kept = keep_rows(layers_format, watched, read)
    if not kept.rows:
        kept.lease.release()
        return None
    return _layer(kept, tag)


def keep_rows(layers_format: LayerFormat, watched: DataFrame, read: Callable[[], Mapping[str, Any] | None]) -> Kept:
    """Run a frame whose extent is observed, and keep its rows, if there are any: one job."""
    with blocks_needed(layers_format.uid):
        kept = cut(watched)
    lease = Lease(lambda: free(kept))
    try:
        rows, first, last = _extent(read() or _ask(kept, layers_format), layers_format)
    except BaseException:
        lease.release()
        raise
    return Kept(frame=kept, rows=rows, first_end=first, last_end=last, lease=lease)


def _layer(kept: Kept, tag: Tag) -> Layer:
    return Layer(
        name=tag.name,
        level=tag.level,
        epoch=tag.epoch,
        turn=tag.turn,
        rows=kept.rows,
        first_end=kept.first_end,
        last_end=kept.last_end,
        frame=kept.frame,
        lease=kept.lease,
    )


def _extent(told: Mapping[str, Any], layers_format: LayerFormat) -> tuple[int, int, int]:
    """Rows, and where the first and the last of them end: of none, no stretch of time."""
    rows, first, last = told["rows"] or 0, told["first"], told["last"]
    if not rows:
        return 0, END_OF_TIME, BEGINNING
    if first is None or last is None:
        msg = f"a layer of step '{layers_format.uid}' has {rows} rows and no window"
        raise InternalError(msg)
    return rows, max(first, BEGINNING), last


def _ask(kept: DataFrame, layers_format: LayerFormat) -> dict[str, int | None]:
    """The same figures by a job of their own: only if the observation was lost, since the layer depends on them."""
    row = kept.agg(*layers_format.extent).collect()[0]
    return dict(zip(EXTENT, row, strict=True))
