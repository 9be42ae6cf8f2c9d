"""Limits that users give to sources and sinks, checked."""

from __future__ import annotations

from penstock.errors import GraphError


def check_limit(name: str, value: object, *, least: int = 1) -> None:
    """Refuse a limit that is no whole number of at least ``least``. ``None`` is no limit.

    >>> check_limit("max_rows_per_batch", 0)
    Traceback (most recent call last):
    penstock.errors.GraphError: max_rows_per_batch=0 is not possible. Give a whole number of at least 1.
    """
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        msg = f"{name}={value!r} is not possible. Give a whole number of at least {least}."
        raise GraphError(msg)
