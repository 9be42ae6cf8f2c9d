"""A source that has no rows: it stands for one that a shadow run is not to read. Asks nobody, tells nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import InternalError
from penstock.handles import Guarantee, Position
from penstock.ids import CheckpointId, Instant, WallTime
from penstock.sources.base import CaughtUp, Limits, Nothing, Poll, Source, SourceContext, Until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

KIND: Final = "silent/1"

WAIT: Final = 1_000_000
"""Microseconds from one question for rows to the next, in a run that has no end."""


@dataclass(frozen=True, slots=True)
class Silent:
    """The same columns as a source, and never a row of it: the source itself is not opened.

    It is idle, so it holds no watermark back; it does not end, so no window closes for it.
    """

    of: Source

    @property
    def guarantee(self) -> Guarantee:
        """Nothing is read, so nothing is lost."""
        return Guarantee.EXACTLY_ONCE

    def schema(self, spark: SparkSession) -> StructType:
        """The columns of the source that it stands for."""
        return self.of.schema(spark)

    def open(self, context: SourceContext, resume: Position | None) -> SilentReader:
        """A reader that stays where it is, whatever kind of position that is."""
        return SilentReader(context.until, resume)

    def describe(self) -> str:
        """For people."""
        return f"left out: {self.of.describe()}"


class SilentReader:
    """Says that it is idle, and then that it has caught up."""

    def __init__(self, until: Until, resume: Position | None) -> None:
        self._position = resume or Position(kind=KIND, detail={})
        self._is_over = until is Until.CAUGHT_UP
        self._is_told = False

    def poll(self, *, now: Instant, wall: WallTime, limits: Limits) -> Poll:  # noqa: ARG002 - never anything to read
        """No rows."""
        if self._is_told and self._is_over:
            return CaughtUp()
        wait = 0 if self._is_over else WAIT
        self._is_told = True
        return Nothing(wake_at=Instant(now + wait), idle=True)

    def frame(self, plan: object) -> DataFrame:
        """Never asked for."""
        msg = f"a source that was left out was asked for the rows of {plan!r}"
        raise InternalError(msg)

    def position(self) -> Position:
        """Where the source was."""
        return self._position

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Nobody is told."""

    def close(self) -> None:
        """Nothing is held."""
