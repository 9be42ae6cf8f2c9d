"""Brings durable rows back as one layer in memory, part by part: beside the data, or for whoever waits for them.

Knows nothing of files, of how a part is read, or of the stack that the layer will lie in. Each part is one job. Whoever
needs the rows takes the parts that nobody has taken yet, and waits for those that somebody has.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.elements import Lease
from penstock.state.layer import Extent, Kept, Layer, release

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Coming(Extent):
    """What is known of a layer before its rows are there.

    Attributes:
        name: of the layer.
        turn: see :attr:`penstock.state.layer.Layer.turn`.
        refs: names of the durable layers that it is made of.
    """

    name: str
    turn: int
    refs: frozenset[str]


class Loading:
    """A layer on its way into memory.

    Args:
        coming: what is known of it.
        parts: each brings the rows of one part into memory, in one job.
        join: makes the frame of the whole of those of its parts, in order; no job.
    """

    def __init__(
        self,
        coming: Coming,
        parts: Sequence[Callable[[], Kept]],
        join: Callable[[Sequence[DataFrame]], DataFrame],
    ) -> None:
        self.coming = coming
        self._parts = parts
        self._join = join
        self._taken = 0
        self._loaded: dict[int, Kept] = {}
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
        release(loaded)

    def _tell(self, error: BaseException) -> bool:
        """Whether anybody cares: the files of what nobody wants any more may be gone."""
        with self._changed:
            if not self._ended:
                self._error = error
            self._changed.notify_all()
            return not self._ended

    def _keep(self, number: int, kept: Kept) -> bool:
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
            lease=Lease(lambda: release(parts)),
            turn=coming.turn,
        )
