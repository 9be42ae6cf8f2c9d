"""What came out of a pipeline under test: rows by sink, watermarks, counters, facts. Moves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from difflib import get_close_matches
from typing import Final

from penstock.errors import HarnessError
from penstock.facts import Fact, JobStarted, WatermarkAdvanced
from penstock.ids import BEGINNING, END_OF_TIME
from penstock.job.report import Report, Tally
from penstock.testing.substitute import Cast, nearest
from penstock.testing.values import Row

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ROLES: Final = ("source", "sink")
_LAST: Final = datetime.max.replace(tzinfo=timezone.utc)


class Outcome:
    """Reads what stand-ins and facts tell; sources, steps and sinks are addressed by their uid.

    Attributes:
        facts: everything that the runtime reported, in order.
    """

    def __init__(self, cast: Cast) -> None:
        self.facts: list[Fact] = []
        self._cast = cast
        self._watermarks: dict[str, int] = {}

    def rows(self, uid: str, *columns: str) -> list[Row]:
        """Published rows of a sink as dictionaries; times are ``datetime`` in UTC.

        They come checkpoint by checkpoint, those of one checkpoint sorted by their columns from left to right.

        Args:
            uid: of the sink; side outputs are sinks like any other.
            columns: only these, in this order.

        Raises:
            HarnessError: there is no such sink or column.
        """
        return _chosen(self._cast.sink(uid).rows, columns, uid)

    def staged(self, uid: str, *columns: str) -> list[Row]:
        """Rows that a sink has written and not published, sorted: their checkpoint is not complete.

        Raises:
            HarnessError: there is no such sink or column.
        """
        return _chosen(self._cast.sink(uid).staged, columns, uid)

    def watermark(self, uid: str) -> datetime | None:
        """How far event time has come at a step or sink, in UTC.

        ``None`` before it has begun, ``datetime.max`` (in UTC) after its sources have ended.

        Raises:
            HarnessError: there is no such step or sink.
        """
        roles = self._cast.roles
        if roles.get(uid) not in ("step", "sink"):
            what = "a source has no watermark, ask a step or a sink" if uid in roles else nearest(uid, roles)
            msg = f"no watermark of {uid!r}: {what or 'there is no such step'}"
            raise HarnessError(msg)
        at = self._watermarks.get(uid, BEGINNING)
        if at in (BEGINNING, END_OF_TIME):
            return None if at == BEGINNING else _LAST
        return _EPOCH + timedelta(microseconds=at)

    def counters(self, uid: str) -> dict[str, int]:
        """What a step has counted (``late``, ``fired`` …), by name. Rows that were redone after a restart count again.

        Raises:
            HarnessError: there is no such step.
        """
        if uid not in self._cast.roles:
            msg = f"no counters of {uid!r}: {nearest(uid, self._cast.roles) or 'there is no such step'}"
            raise HarnessError(msg)
        return {name: amount for (step, name), amount in self.report().counters.items() if step == uid}

    def report(self) -> Report:
        """The sums so far, as of :meth:`penstock.Job.report`."""
        named = {role: frozenset(uid for uid, of in self._cast.roles.items() if of == role) for role in _ROLES}
        tally = Tally(sources=named["source"], sinks=named["sink"])
        for fact in self.facts:
            tally(fact)
        return tally.report()

    def _take(self, fact: Fact) -> None:
        """The listener of every attempt."""
        self.facts.append(fact)
        if isinstance(fact, JobStarted):
            self._watermarks.clear()  # each task announces what it was restored with
        elif isinstance(fact, WatermarkAdvanced):
            self._watermarks[fact.task] = fact.at


def _chosen(rows: list[Row], columns: Sequence[str], uid: str) -> list[Row]:
    if not columns:
        return rows
    for row in rows[:1]:
        for name in columns:
            if name not in row:
                near = get_close_matches(name, row, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(row)}"
                msg = f"sink {uid!r} has no column {name!r}; {hint}"
                raise HarnessError(msg)
    return [{name: row[name] for name in columns} for row in rows]
