"""What ``for_each_batch`` refuses while the pipeline is built; no Spark."""

from __future__ import annotations

import functools
from typing import Any, cast

import pytest

import penstock as ps
from penstock.connectors.for_each import ForEachSink
from penstock.errors import GraphError
from penstock.graph.nodes import Write
from penstock.graph.validate import validate
from penstock.handles import Guarantee


def numbers() -> ps.Stream:
    return ps.Pipeline("demo").read("in", ps.rate.Source(10))


def save(frame: object, epoch: int, *, table: str = "t") -> None:
    """A function as it should be."""


class Saver:
    def __call__(self, frame: object, epoch: int) -> None:
        """Called with both."""


@pytest.mark.parametrize("function", [save, Saver(), functools.partial(save, table="x"), lambda *both: both, max])
def test_functions_of_rows_and_epoch_are_taken(function: Any) -> None:
    stream = numbers()
    stream.for_each_batch("out", function)

    graph = stream.pipeline.graph()
    validate(graph)
    (node,) = (node for node in graph.nodes if isinstance(node, Write))
    assert (node.uid, node.sink) == ("out", ForEachSink(function))
    assert node.origin.file.endswith("test_for_each.py")


async def later(frame: object, epoch: int) -> None:
    """Would be made and never run."""


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (
            lambda frame: frame,
            r"with two arguments, the rows and the epoch, but it takes \(frame\) \(too many.*Write def",
        ),
        (
            lambda frame, epoch, table: table,
            r"it takes \(frame, epoch, table\) \(missing a required argument: 'table'\)",
        ),
        ("save", "cannot take 'save'. Give it a function of the rows"),
        (later, "later is async, and for_each_batch"),
    ],
)
def test_others_are_refused_with_the_line_of_the_user(function: Any, told: str) -> None:
    with pytest.raises(GraphError, match=told) as error:
        numbers().for_each_batch("out", function)

    assert str(error.value).startswith("step 'out' at ")
    assert "test_for_each.py:" in str(error.value)


def test_when_is_one_of_two() -> None:
    with pytest.raises(GraphError, match="when is 'checkpoint', but must be 'commit' or 'batch'"):
        numbers().for_each_batch("out", save, when=cast("Any", "checkpoint"))


def test_it_says_what_it_guarantees() -> None:
    assert ForEachSink(save).guarantee is Guarantee.EXACTLY_ONCE
    assert ForEachSink(save, "batch").guarantee is Guarantee.AT_LEAST_ONCE
    assert ForEachSink(save).describe() == "for_each_batch save"
