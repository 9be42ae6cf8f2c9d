"""Places in a file as ranges: pairs of a first and the one behind the last, sorted and apart. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

Spans: TypeAlias = tuple[tuple[int, int], ...]


def spans_of(places: Iterable[int]) -> Spans:
    """Single places as ranges.

    >>> spans_of([4, 0, 1, 2])
    ((0, 3), (4, 5))
    """
    return joined((place, place + 1) for place in places)


def joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """Ranges that may overlap, as ranges that do not.

    >>> joined([(5, 9), (0, 2), (2, 6)])
    ((0, 9),)
    """
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif start < end:
            found.append((start, end))
    return tuple(found)


def without(spans: Spans, gone: Spans) -> Spans:
    """What is left of ranges.

    >>> without(((0, 10),), ((2, 4), (9, 12)))
    ((0, 2), (4, 9))
    """
    left: list[tuple[int, int]] = []
    for start, end in spans:
        at = start
        for first, last in gone:
            if last <= at or first >= end:
                continue
            if first > at:
                left.append((at, first))
            at = max(at, last)
        if at < end:
            left.append((at, end))
    return tuple(left)


def within(spans: Spans, others: Spans) -> Spans:
    """What is in both.

    >>> within(((0, 10),), ((2, 4), (9, 12)))
    ((2, 4), (9, 10))
    """
    return without(spans, without(spans, others))


def length(spans: Spans) -> int:
    """How many places."""
    return sum(end - start for start, end in spans)


def cut(spans: Spans, most: int) -> Iterator[tuple[Spans, Spans]]:
    """The first so many places, and the rest; again until nothing is left.

    >>> [first for first, _ in cut(((0, 3), (7, 9)), 2)]
    [((0, 2),), ((2, 3), (7, 8)), ((8, 9),)]
    """
    while spans:
        first: list[tuple[int, int]] = []
        room = most
        for start, end in spans:
            if room == 0:
                break
            first.append((start, min(end, start + room)))
            room -= first[-1][1] - start
        spans = without(spans, tuple(first))
        yield tuple(first), spans
