"""Stream processing on Spark batch jobs, with checkpoints that code changes never orphan.

Names are loaded when they are first used: ``import penstock`` starts neither Spark nor loads it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock import testing
    from penstock.admin.shadow import shadow
    from penstock.admin.state_read import read_state
    from penstock.admin.state_write import write_state
    from penstock.api.pipeline import Pipeline, PipelineDefinition, pipeline
    from penstock.api.preview import show
    from penstock.api.stream import GroupedStream, Stream, WindowedResult
    from penstock.connectors import console, files, generator, kafka, kinesis, memory, rate, receivers
    from penstock.connectors.receivers import http, socket
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
    from penstock.graph.nodes import TableRef, every, linger, when_ready
    from penstock.job.job import Job, get_or_create
    from penstock.observability.report import Report
    from penstock.operators import aggregates as agg
    from penstock.operators.windows.assigners import count_window, cumulative, global_window, session, sliding, tumbling

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
    "http",
    "kafka",
    "kinesis",
    "linger",
    "memory",
    "pipeline",
    "rate",
    "read_state",
    "receivers",
    "session",
    "shadow",
    "show",
    "sliding",
    "socket",
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
    "http": "penstock.connectors.receivers.http",
    "kafka": "penstock.connectors.kafka",
    "kinesis": "penstock.connectors.kinesis",
    "memory": "penstock.connectors.memory",
    "rate": "penstock.connectors.rate",
    "receivers": "penstock.connectors.receivers",
    "socket": "penstock.connectors.receivers.socket",
    "testing": "penstock.testing",
}

_HOMES: Final = {
    "GroupedStream": "penstock.api.stream",
    "Job": "penstock.job.job",
    "Pipeline": "penstock.api.pipeline",
    "PipelineDefinition": "penstock.api.pipeline",
    "Report": "penstock.observability.report",
    "Stream": "penstock.api.stream",
    "TableRef": "penstock.graph.nodes",
    "WindowedResult": "penstock.api.stream",
    "count_window": "penstock.operators.windows.assigners",
    "cumulative": "penstock.operators.windows.assigners",
    "every": "penstock.graph.nodes",
    "get_or_create": "penstock.job.job",
    "global_window": "penstock.operators.windows.assigners",
    "linger": "penstock.graph.nodes",
    "pipeline": "penstock.api.pipeline",
    "read_state": "penstock.admin.state_read",
    "session": "penstock.operators.windows.assigners",
    "shadow": "penstock.admin.shadow",
    "show": "penstock.api.preview",
    "sliding": "penstock.operators.windows.assigners",
    "tumbling": "penstock.operators.windows.assigners",
    "when_ready": "penstock.graph.nodes",
    "write_state": "penstock.admin.state_write",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        from penstock.errors import did_you_mean

        msg = f"Module 'penstock' has no attribute {name!r}{did_you_mean(name, __all__)}"
        raise AttributeError(msg)
    if name in _MODULES:
        value: object = import_module(_MODULES[name])
    else:
        value = getattr(import_module(_HOMES.get(name, "penstock.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
