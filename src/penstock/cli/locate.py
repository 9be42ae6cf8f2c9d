"""Finds ``module:pipeline`` from the current folder on, and says what is there when it is not. Runs nothing."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

import penstock
from penstock.checkpoint.names import near
from penstock.cli.exits import UsageError
from penstock.errors import GraphError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from penstock.graph.pipeline import PipelineDefinition

_NOT_THE_USERS: Final = (
    str(Path(penstock.__file__).parent),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    "<frozen",
)


def locate(target: str) -> PipelineDefinition:
    """The pipeline that ``module:name`` names; the current folder is searched first.

    Raises:
        UsageError: no such module, or no such pipeline in it; with the nearest names.
        GraphError: the module's own code raised; with the user's line.
    """
    name, colon, attribute = target.partition(":")
    if not colon or not name or not attribute:
        raise UsageError(_shape(target))
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = _import(name, target)
    found = getattr(module, attribute, None)
    if found is None:
        here = _pipelines(module)
        msg = f"module {name!r} has no pipeline {attribute!r}{_hint(attribute, here, 'it has no pipeline at all')}"
        raise UsageError(msg)
    if not _is_pipeline(found):
        msg = f'{target} is a {type(found).__name__}, not a pipeline; put @ps.pipeline("{attribute}") above it'
        raise UsageError(msg)
    return found  # type: ignore[no-any-return]


def _shape(target: str) -> str:
    path = Path(target.partition(":")[0])
    example = f"{path.stem}:{target.partition(':')[2] or 'orders'}" if path.suffix == ".py" else f"{target}:orders"
    return f"{target!r} is not module:pipeline; write for example {example}"


def _import(name: str, target: str) -> ModuleType:
    if name.endswith(".py") or "/" in name:
        raise UsageError(_shape(target))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise refused(error) from error
        near = [module.name for module in pkgutil.iter_modules([os.getcwd()])]
        msg = f"there is no module {name!r} in {os.getcwd()} or on the path"
        raise UsageError(msg + _hint(name, near, "this folder has no modules")) from None
    except PenstockError:
        raise
    except Exception as error:
        raise refused(error) from error


def refused(error: BaseException) -> GraphError:
    """What the user's own code raised while it was read, with the user's line and no other frame."""
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        return GraphError(f"SyntaxError: {error.msg}", where=f"{_short(error.filename)}:{error.lineno}")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_the_users(frame.filename)]
    if not frames:
        return GraphError(what)
    return GraphError(f"in {frames[-1].name}: {what}", where=f"{_short(frames[-1].filename)}:{frames[-1].lineno}")


def _is_the_users(filename: str) -> bool:
    return not filename.startswith(_NOT_THE_USERS) and "site-packages" not in filename


def _short(filename: str) -> str:
    path = os.path.relpath(filename)
    return filename if path.startswith("..") else path


def _pipelines(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if _is_pipeline(value)]


def _is_pipeline(value: object) -> bool:
    from penstock.graph.pipeline import PipelineDefinition

    return isinstance(value, PipelineDefinition)


def _hint(name: str, there: Iterable[str], none: str) -> str:
    return near(name, there) or f"; {none}"
