"""The lines of the user's code: in messages, and in tracebacks that show little else."""

from __future__ import annotations

import contextlib
import sys
import sysconfig
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, Final, TypeVar, cast

from penstock.errors import Domain, PenstockError

# ---- lines of it -----------------------------------------------------------------------------------------------------

PACKAGE: Final = str(Path(__file__).resolve().parent) + "/"
"""How the file names of penstock's own code begin."""
_STANDARD_LIBRARY: Final = sysconfig.get_path("stdlib") + "/"
_SPARK: Final = ("/pyspark/", "/py4j/")
_LIBRARIES: Final = (*_SPARK, "/site-packages/", "/dist-packages/")


def is_users_code(file: str) -> bool:
    """Return whether a file is none of penstock, of Spark, of an installed library or of Python's own."""
    is_python = file.startswith((_STANDARD_LIBRARY, "<frozen "))
    return not file.startswith(PACKAGE) and not is_python and not any(part in file for part in _LIBRARIES)


def raised_at(error: BaseException) -> str | None:
    """Return ``shop.py:12 in add_tax``, the innermost frame of the user's code in an error's traceback."""
    frame = _innermost(error)
    return None if frame is None else f"{short_path(frame.filename)}:{frame.lineno} in {frame.name}"


def line_of(error: BaseException) -> str | None:
    """Return ``shop.py:12``, the line of that frame."""
    frame = _innermost(error)
    return None if frame is None else f"{short_path(frame.filename)}:{frame.lineno}"


def _innermost(error: BaseException) -> traceback.FrameSummary | None:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users_code(frame.filename)]
    return frames[-1] if frames else None


def short_path(file: str) -> str:
    """Return a path relative to the current folder, if it is below it; ``In[3]`` for a cell of a notebook."""
    cell = _cell(file)
    if cell is not None:
        return cell
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file


def _cell(file: str) -> str | None:
    """The name of the notebook cell whose code is compiled under this file name."""
    ipython: Any = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    named = name_of(file) if name_of is not None else None
    return None if named is None else str(named[1])


# ---- short tracebacks ------------------------------------------------------------------------------------------------

_T = TypeVar("_T", bound=Callable[..., Any])


def short_tracebacks(target: _T) -> _T:
    """Return a function, or a class with all its public methods, whose errors show the user's own lines.

    Only errors that are the user's fault (``Domain.USER``) are shortened. Frames of penstock and Spark are left out,
    and so is a cause with no other frames: the message says what it said. It stays in ``error.__context__``, and
    ``error.full_traceback()`` has everything. Of all other errors, the frames tell what the message cannot.
    """
    if not isinstance(target, type):
        return cast("_T", _shortened(target))
    for name, member in list(vars(target).items()):
        if name.startswith("_") and name not in ("__init__", "__enter__"):
            continue
        if isinstance(member, FunctionType):
            setattr(target, name, _shortened(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(target, name, property(_shortened(member.fget), member.fset, member.fdel, member.__doc__))
    return target


def _shortened(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def short(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # notebooks and pytest leave out this frame too
        try:
            return function(*args, **kwargs)
        except PenstockError as error:
            if error.domain is not Domain.USER:
                raise
            error.keep_full_traceback()
            error.__traceback__ = _users_frames(error.__traceback__)
            _shorten_causes(error)
            # Not a bare raise: on Python 3.10 that would bring the frames back.
            raise error

    return short


def _shorten_causes(error: BaseException) -> None:
    """Leave only the user's frames in the causes of an error; a cause that has none becomes its context."""
    cause = error.__cause__
    if cause is None:
        return
    _shorten_causes(cause)
    frames = _users_frames(cause.__traceback__)
    if frames is None and cause.__cause__ is None:
        error.__context__, error.__cause__ = cause, None  # as after `raise … from None`: it is not shown
    else:
        cause.__traceback__ = frames


def _users_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of penstock and Spark, and of the context managers that they use."""
    kept: list[TracebackType] = []
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not (file.startswith(PACKAGE) or file == contextlib.__file__ or any(part in file for part in _SPARK)):
            kept.append(trace)
        trace = trace.tb_next
    short: TracebackType | None = None
    for each in reversed(kept):
        short = TracebackType(short, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return short
