"""What steps are called: a pipeline may give one another uid, and the judge goes by what it was called first."""

from __future__ import annotations

import re

_LATER = re.compile(r"-r\d+")


def called(uid: str, number: int) -> str:
    """A uid that nobody has had.

    >>> called("count-r3", 7)
    'count-r7'
    """
    return f"{first_called(uid)}-r{number}"


def first_called(uid: str) -> str:
    """What a step was called before it was ever renamed; of a union, with all that it unites.

    >>> first_called("union@source0-r3+source1")
    'union@source0+source1'
    """
    return _LATER.sub("", uid)
