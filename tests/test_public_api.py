"""The surface is what ``__all__`` says: sorted, importable, documented, and known to type checkers."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import penstock as ps

_PACKAGE = Path(ps.__file__).parent


def test_the_names_are_sorted_and_each_is_there():
    assert ps.__all__ == sorted(ps.__all__)
    assert dir(ps) == ps.__all__
    for name in ps.__all__:
        assert getattr(ps, name) is not None


def test_each_name_is_documented():
    undocumented = [name for name in ps.__all__ if not inspect.getdoc(getattr(ps, name))]
    assert undocumented == []


def test_type_checkers_see_the_same_names():
    tree = ast.parse((_PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname or alias.name for node in block.body for alias in node.names}
    assert sorted(seen) == ps.__all__


def test_for_each_batch_takes_a_function_and_when_it_is_called():
    parameters = inspect.signature(ps.Stream.for_each_batch).parameters
    assert list(parameters) == ["self", "uid", "function", "when"]
    assert parameters["when"].default == "commit"
    assert parameters["when"].kind is inspect.Parameter.KEYWORD_ONLY


def test_what_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'kafkaesque'"):
        _ = ps.kafkaesque


def test_namespaces_name_only_connectors():
    beside = {
        "http": {"env", "file"},
        "kafka": {"env", "file"},
        "kinesis": {"After", "Finished", "KinesisCheckpointer", "env", "file", "imported", "leases"},
        "receivers": {"Receiver", "Store"},
    }
    for name in ("console", "files", "generator", "http", "kafka", "kinesis", "memory", "rate", "receivers", "socket"):
        module = getattr(ps, name)
        assert set(module.__all__) - beside.get(name, set()) <= {"Sink", "Source"}
        assert module.__name__.startswith("penstock.connectors.")
