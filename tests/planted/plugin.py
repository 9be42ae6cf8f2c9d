"""A pytest plugin that plants the bug named by ``PLANTED`` for the whole run."""

from __future__ import annotations

import os

from planted import (  # noqa: F401
    of_another_kind,
    of_files,
    of_functions,
    of_kinesis,
    of_letters,
    of_mistakes,
    of_received,
    of_rewinds,
    of_state,
    of_the_breadth,
    of_the_log,
    of_the_operator,
    of_the_run,
)
from planted.bug import planted

_context = None


def pytest_configure() -> None:
    global _context  # noqa: PLW0603 - pytest has no place for it
    _context = planted(os.environ["PLANTED"])
    _context.__enter__()
