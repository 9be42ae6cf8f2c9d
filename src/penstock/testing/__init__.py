"""Tools for testing pipelines and connectors; part of the public API.

Names are loaded when they are first used: only the contracts need pytest, and only what runs something needs Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from penstock.errors import did_you_mean

if TYPE_CHECKING:
    from penstock.testing.clock import ManualClock
    from penstock.testing.contracts import FileSystemContract, SinkContract, SourceContract
    from penstock.testing.filesystem import MemoryFileSystem
    from penstock.testing.frames import assert_rows, same_rows
    from penstock.testing.operator_harness import OperatorHarness
    from penstock.testing.pipeline_run import PipelineRun, run
    from penstock.testing.sources import Crash, End, Idle, Pause, ScriptedSource
    from penstock.testing.substitute import CollectSink

__all__ = [
    "CollectSink",
    "Crash",
    "End",
    "FileSystemContract",
    "Idle",
    "ManualClock",
    "MemoryFileSystem",
    "OperatorHarness",
    "Pause",
    "PipelineRun",
    "ScriptedSource",
    "SinkContract",
    "SourceContract",
    "assert_rows",
    "run",
    "same_rows",
]

_HOMES: Final = {
    "CollectSink": "substitute",
    "Crash": "sources",
    "End": "sources",
    "FileSystemContract": "contracts",
    "Idle": "sources",
    "ManualClock": "clock",
    "MemoryFileSystem": "filesystem",
    "OperatorHarness": "operator_harness",
    "Pause": "sources",
    "PipelineRun": "pipeline_run",
    "ScriptedSource": "sources",
    "SinkContract": "contracts",
    "SourceContract": "contracts",
    "assert_rows": "frames",
    "run": "pipeline_run",
    "same_rows": "frames",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        msg = f"Module 'penstock.testing' has no attribute {name!r}{did_you_mean(name, __all__)}"
        raise AttributeError(msg)
    value: object = getattr(import_module(f"penstock.testing.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
