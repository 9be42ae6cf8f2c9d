"""A session beside another, whose optimiser goes without the rules that had nothing to do in plans of one shape.

Planning takes the driver a good part of what a small batch costs, and most of Spark's rules look through each plan for
joins, subqueries, limits, which a plan that comes again and again never has. Knows no step, and not what plans mean.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.state.sessions import twin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

LEARNS: Final = 3
"""Plans that are made with all rules before some are left out."""

AGAIN: Final = 256
"""After so many plans it learns anew: rows may come from elsewhere now, by another plan."""

_EXCLUDED: Final = "spark.sql.optimizer.excludedRules"
_TOLD: Final = re.compile(r"([\w.$]+) -> RuleSummary\(\d+, \d+, (\d+)\)")


class LeanSession:
    """Learns from the first plans which rules change them, and has later ones made with those alone.

    Only rules that Spark lets a user exclude are left out: without them a plan gives the same rows, at worst more
    slowly, until it is learned anew. Rules that the user has excluded stay so.

    Args:
        of: a session; this one has its settings.

    Attributes:
        session: to make plans of one shape in, one at a time.
        left_out: rules that the next plan is made without, besides those that the user has excluded.
    """

    def __init__(self, of: SparkSession) -> None:
        self.session = twin(of)
        self.left_out: frozenset[str] = frozenset()
        self._users: str = self.session.conf.get(_EXCLUDED, None) or ""
        optimizer: Any = cast("Any", self.session)._jsparkSession.sessionState().optimizer()  # noqa: SLF001
        required = optimizer.nonExcludableRules()
        self._required = frozenset(required.apply(place) for place in range(required.size()))
        self._rules: frozenset[str] = frozenset()
        self._useful: frozenset[str] = frozenset()
        self._made = 0

    @contextmanager
    def planning(self, frame: DataFrame) -> Iterator[None]:
        """Around what has the session optimise the plan of ``frame``, once."""
        place = self._made % AGAIN
        self._made += 1
        if place == 0:
            self._rules = self._useful = frozenset()
        if place in {0, LEARNS}:
            self._leave_out(self._rules - self._useful - self._required)
        yield
        if place < LEARNS:
            self._learn(frame)

    def _learn(self, frame: DataFrame) -> None:
        tracker: Any = cast("Any", frame)._jdf.queryExecution().tracker()  # noqa: SLF001 - there is no public way
        told = _TOLD.findall(tracker.rules().toString())
        self._rules |= {name for name, _ in told if ".optimizer." in name or ".datasources." in name}
        self._useful |= {name for name, effective in told if effective != "0"}

    def _leave_out(self, rules: frozenset[str]) -> None:
        if rules == self.left_out:
            return
        self.left_out = rules
        self.session.conf.set(_EXCLUDED, ",".join(filter(None, (self._users, *sorted(rules)))))
