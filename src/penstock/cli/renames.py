"""Which uid stands for which older one, as ``--rename`` says it, of run, plan and shadow alike. Knows no graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.checkpoint.renaming import check_rename
from penstock.cli.exits import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


def renames_of(pairs: Sequence[str]) -> dict[str, str]:
    """What ``--rename OLD=NEW`` says, as often as it was given.

    Raises:
        UsageError: it is not written so.

    >>> renames_of(["totals=sums", "in=orders"])
    {'totals': 'sums', 'in': 'orders'}
    """
    found: dict[str, str] = {}
    for pair in pairs:
        old, is_there, new = pair.partition("=")
        if not (old and is_there and new) or old in found:
            msg = f"--rename {pair}: write each as OLD=NEW, such as --rename totals=sums, and each old uid once"
            raise UsageError(msg)
        found[old] = new
    return check_rename(found)
