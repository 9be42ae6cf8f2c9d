"""Finds the user's file and line that called into penstock; knows nothing of what was called."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final

from penstock.graph.nodes import Origin

_PACKAGE: Final = str(Path(__file__).resolve().parent.parent) + "/"
_FOREIGN: Final = ("/pyspark/", "/py4j/", "/site-packages/", "<frozen ")


def caller() -> Origin:
    """Where the first frame outside of penstock stands."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads every source file
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return Origin("<unknown>", 0)
    return Origin(_short(frame.f_code.co_filename), frame.f_lineno)


def raised_at(error: BaseException) -> str | None:
    """``shop.py:12 in add_tax`` for the innermost frame of the user's own code that an error went through."""
    place: str | None = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_PACKAGE) and not any(part in code.co_filename for part in _FOREIGN):
            place = f"{_short(code.co_filename)}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return place


def defined_at(function: object) -> str | None:
    """``shop.py:12`` for where a function of the user stands, if it has such a place."""
    code = getattr(function, "__code__", None)
    return f"{_short(code.co_filename)}:{code.co_firstlineno}" if code is not None else None


def _short(file: str) -> str:
    """Relative to where the user stands, if it is below."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file
