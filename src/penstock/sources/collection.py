"""Python's garbage collector out of the way while many objects are made that are in no cycle. Knows no source."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection of cycles inside.

    Ten thousands of records are ten thousands of objects for the collector, and each so many of them it looks through
    all that is there, modules included: a third of the time of reading records. Reference counts free them anyway.

    >>> with uncollected():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
