"""Reads a job's log from its state directory alone; knows no pipeline and no Spark, and writes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.checkpoint import paths
from penstock.checkpoint.reading import read_history
from penstock.cli.exits import UsageError
from penstock.cli.locate import near
from penstock.filesystem.local import LocalFileSystem

if TYPE_CHECKING:
    from penstock.checkpoint.history import History


def read_log(state: str, job: str) -> History:
    """What the log says now, whether the job runs or not.

    Raises:
        UsageError: there is no such job; with the nearest name.
        PenstockError: the log cannot be read.
    """
    root = Path(state.removeprefix("file://"))
    if "://" in str(root) or not (root / job / paths.LOG).is_dir():
        raise _unknown(job, root)
    history = read_history(LocalFileSystem(root / job), job)
    if history.is_empty:
        raise _unknown(job, root)
    return history


def _unknown(job: str, root: Path) -> UsageError:
    there = [found.parent.name for found in root.glob(f"*/{paths.LOG}")] if root.is_dir() else []
    return UsageError(f"there is no job {job!r} in {root}" + (near(job, there) or "; no job has any state there"))
