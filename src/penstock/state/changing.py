"""Values that change with every batch, written so that Spark compiles nothing anew; knows nothing of what they mean.

A plain literal is part of the generated Java, so a watermark or a horizon in a predicate would compile the whole
stage again for each batch (``:param`` and scalar subqueries too). An *array* literal goes into generated code by
reference. So the value is put into an array twice and taken out by an index that the optimiser cannot fold:
``array(v, v)[pmod(hash(column), 2)]``.

A range predicate also tells Spark that its column is not null, and then a union of layers no longer has the
partitioning of its children: an exchange. ``(predicate) <=> true`` tells it nothing. Tests count both.
"""

from __future__ import annotations


def quoted(name: str) -> str:
    """A column's name as SQL.

    >>> quoted("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


def changing(value: int, *, beside: str | None = None, mark: int | None = None) -> str:
    """SQL for the BIGINT ``value`` that is not part of generated code.

    Args:
        value: fits 64 bits.
        beside: any column of the frame it is used in; only its hash's parity is looked at. Without one, for frames
            whose columns are not known, the partition's number serves, which Spark does not move across other steps.
        mark: a number that makes two otherwise equal plans differ. Spark keeps one cache entry for equal plans, and
            whoever frees it first frees it for all.
    """
    more = "" if mark is None else f", {mark}L"
    turn = f"hash({quoted(beside)})" if beside is not None else "spark_partition_id()"
    return f"array({value}L, {value}L{more})[pmod({turn}, 2)]"


def holds(predicate: str) -> str:
    """SQL for ``predicate`` as a filter that leaves no not-null constraint behind; unknown counts as false."""
    return f"({predicate}) <=> true"
