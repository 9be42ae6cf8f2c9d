"""Rows compared without regard to their order, and the difference said so that it can be read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from penstock.errors import HarnessError
from penstock.testing.values import Row, as_mapping, rows_of, time_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Rows: TypeAlias = "Iterable[object] | DataFrame"

_MOST_SHOWN = 20


def same_rows(actual: Rows, expected: Rows) -> bool:
    """Whether both hold the same rows, each as often, in any order.

    Rows are dictionaries or Spark ``Row``; a DataFrame is run. Times and dates may be written as ISO text on one side.
    Floating point numbers are equal within a billionth.

    >>> same_rows([{"n": 1}, {"n": 2}], [{"n": 2}, {"n": 1}])
    True
    """
    return not _difference(listed(actual), listed(expected))


def assert_rows(actual: Rows, expected: Rows) -> None:
    """As :func:`same_rows`, but raises, saying which rows are missing, which nobody expected, and where they differ.

    Raises:
        AssertionError: the rows are not the same.

    >>> assert_rows([{"user": "a", "n": 1}, {"user": "b", "n": 2}], [{"user": "a", "n": 1}, {"user": "b", "n": 3}])
    Traceback (most recent call last):
        ...
    AssertionError: rows differ: 1 as expected, 1 missing, 1 unexpected
      differs: {'user': 'b', 'n': 3} was expected, but n is 2
    """
    found = _difference(listed(actual), listed(expected))
    if found:
        raise AssertionError(found)


def listed(rows: Rows) -> list[Row]:
    """Rows as a list of dictionaries.

    Raises:
        HarnessError: one is no dictionary and no Spark ``Row``.
    """
    if hasattr(rows, "toArrow"):
        return rows_of(cast("DataFrame", rows))
    found = []
    for row in rows:
        given = as_mapping(row)
        if given is None:
            msg = f"rows are compared as dictionaries, got {row!r}"
            raise HarnessError(msg)
        found.append(dict(given))
    return found


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Sorted by their columns from left to right, ``NULL`` first: an order that a test can rely on.

    >>> in_order([{"n": 2}, {"n": None}, {"n": 1}])
    [{'n': None}, {'n': 1}, {'n': 2}]
    """
    return sorted(rows, key=lambda row: tuple(_sortable(value) for value in row.values()))


def _sortable(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    if isinstance(value, (bool, int, float)):
        return (1, "", math.isnan(value), 0 if math.isnan(value) else value)
    if isinstance(value, (str, datetime)):
        return (1, type(value).__name__, False, value)
    return (1, type(value).__name__, False, repr(value))


def _difference(actual: list[Row], expected: list[Row]) -> str:
    """Nothing if they are the same."""
    unexpected = list(actual)
    missing = []
    for row in expected:
        place = next((i for i, other in enumerate(unexpected) if _same(row, other)), None)
        if place is None:
            missing.append(row)
        else:
            del unexpected[place]
    if not missing and not unexpected:
        return ""
    counts = f"{len(expected) - len(missing)} as expected, {len(missing)} missing, {len(unexpected)} unexpected"
    lines = list(_lines(missing, unexpected))
    more = [f"  … and {len(lines) - _MOST_SHOWN} more"] if len(lines) > _MOST_SHOWN else []
    return "\n".join([f"rows differ: {counts}", *lines[:_MOST_SHOWN], *more])


def _lines(missing: list[Row], unexpected: list[Row]) -> Iterable[str]:
    """A missing row is told together with the unexpected one that is most like it."""
    left = list(unexpected)
    for row in missing:
        nearest = max(left, key=lambda other: _alike(row, other), default=None)
        if nearest is None or not _alike(row, nearest):
            yield f"  missing: {row}"
            continue
        left.remove(nearest)
        yield f"  differs: {row} was expected, but {', '.join(_columns(row, nearest))}"
    for row in left:
        yield f"  unexpected: {row}"


def _columns(expected: Row, actual: Row) -> Iterable[str]:
    for name in {**expected, **actual}:
        if name not in actual:
            yield f"{name} is not there"
        elif name not in expected:
            yield f"{name} is there too: {actual[name]!r}"
        elif not _same(expected[name], actual[name]):
            yield f"{name} is {actual[name]!r}"


def _alike(row: Row, other: Row) -> int:
    return sum(name in other and _same(value, other[name]) for name, value in row.items())


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return _same_number(one, other)
    if isinstance(one, (str, datetime, date)) and isinstance(other, (str, datetime, date)):
        return _same_time(one, other)
    left, right = as_mapping(one), as_mapping(other)
    if left is not None and right is not None:
        return left.keys() == right.keys() and all(_same(value, right[name]) for name, value in left.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _same_number(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    if not isinstance(one, (int, float)) or not isinstance(other, (int, float)):
        return False
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=1e-9)


def _same_time(one: str | datetime | date, other: str | datetime | date) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    if isinstance(one, datetime) or isinstance(other, datetime):
        try:
            return time_of(cast("str | datetime", one)) == time_of(cast("str | datetime", other))
        except (ValueError, AttributeError):  # a text that is no time, or a date
            return False
    return str(one) == str(other)
