"""Stream processing on Spark batch jobs, with checkpoints that code changes never orphan.

Names are loaded when they are first used: ``import penstock`` starts neither Spark nor loads it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock import testing
    from penstock.connectors import console, files, generator, kafka, memory, rate
    from penstock.errors import (
        ConnectorError,
        DuplicateUid,
        GraphError,
        PenstockError,
        SchemaMismatch,
        SettingsError,
        StateIncompatible,
        UserFunctionError,
    )
    from penstock.graph.grouped import GroupedStream, WindowedResult
    from penstock.graph.pace import every, linger, when_ready
    from penstock.graph.parts import TableRef
    from penstock.graph.pipeline import Pipeline, PipelineDefinition, pipeline
    from penstock.graph.stream import Stream
    from penstock.job import Job, Report, get_or_create
    from penstock.operate.shadow.running import shadow
    from penstock.operate.state.read import read_state
    from penstock.operate.state.write import write_state
    from penstock.operators import aggregates as agg
    from penstock.operators.windows import (
        count_window,
        cumulative,
        global_window,
        session,
        sliding,
        tumbling,
    )

__all__ = [
    "ConnectorError",
    "DuplicateUid",
    "GraphError",
    "GroupedStream",
    "Job",
    "PenstockError",
    "Pipeline",
    "PipelineDefinition",
    "Report",
    "SchemaMismatch",
    "SettingsError",
    "StateIncompatible",
    "Stream",
    "TableRef",
    "UserFunctionError",
    "WindowedResult",
    "agg",
    "console",
    "count_window",
    "cumulative",
    "every",
    "files",
    "generator",
    "get_or_create",
    "global_window",
    "kafka",
    "linger",
    "memory",
    "pipeline",
    "rate",
    "read_state",
    "session",
    "shadow",
    "sliding",
    "testing",
    "tumbling",
    "when_ready",
    "write_state",
]

_MODULES: Final = {
    "agg": "penstock.operators.aggregates",
    "console": "penstock.connectors.console",
    "files": "penstock.connectors.files",
    "generator": "penstock.connectors.generator",
    "kafka": "penstock.connectors.kafka",
    "memory": "penstock.connectors.memory",
    "rate": "penstock.connectors.rate",
    "testing": "penstock.testing",
}

_HOMES: Final = {
    "GroupedStream": "penstock.graph.grouped",
    "Job": "penstock.job",
    "Pipeline": "penstock.graph.pipeline",
    "PipelineDefinition": "penstock.graph.pipeline",
    "Report": "penstock.job",
    "Stream": "penstock.graph.stream",
    "TableRef": "penstock.graph.parts",
    "WindowedResult": "penstock.graph.grouped",
    "count_window": "penstock.operators.windows",
    "cumulative": "penstock.operators.windows",
    "every": "penstock.graph.pace",
    "get_or_create": "penstock.job",
    "global_window": "penstock.operators.windows",
    "linger": "penstock.graph.pace",
    "pipeline": "penstock.graph.pipeline",
    "read_state": "penstock.operate.state.read",
    "session": "penstock.operators.windows",
    "shadow": "penstock.operate.shadow.running",
    "sliding": "penstock.operators.windows",
    "tumbling": "penstock.operators.windows",
    "when_ready": "penstock.graph.pace",
    "write_state": "penstock.operate.state.write",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        msg = f"module 'penstock' has no attribute {name!r}"
        raise AttributeError(msg)
    if name in _MODULES:
        value: object = import_module(_MODULES[name])
    else:
        value = getattr(import_module(_HOMES.get(name, "penstock.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
