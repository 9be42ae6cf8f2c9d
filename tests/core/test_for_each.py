"""What ``for_each_batch`` refuses while the pipeline is built; no Spark."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import penstock as ps
from penstock.connectors.for_each import BatchWriter, ForEachCommitter, ForEachSink, When
from penstock.errors import GraphError, UserFunctionError
from penstock.filesystem.local import LocalFileSystem
from penstock.graph.nodes import Write
from penstock.graph.validate import validate
from penstock.handles import CheckpointId, Committable, FileRef, Guarantee
from penstock.interfaces.sink import CommitContext


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


def stepwise(frame: object, epoch: int) -> Iterator[int]:
    yield epoch


async def stepwise_later(frame: object, epoch: int) -> AsyncIterator[int]:
    yield epoch


class LaterSaver:
    async def __call__(self, frame: object, epoch: int) -> None:
        """Would be made and never run."""

    def save(self, frame: object, epoch: int) -> Iterator[int]:
        yield epoch


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
        (LaterSaver(), "LaterSaver is async, and for_each_batch"),
        (functools.partial(LaterSaver()), "LaterSaver is async, and for_each_batch"),
        (stepwise_later, "stepwise_later is async, and for_each_batch"),
        (stepwise, "stepwise has a yield, so that a call of it runs nothing. Write it without one"),
        (LaterSaver().save, "LaterSaver.save has a yield"),
        (functools.partial(LaterSaver().save), "LaterSaver.save has a yield"),
    ],
)
def test_others_are_refused_with_the_line_of_the_user(function: Any, told: str) -> None:
    with pytest.raises(GraphError, match=told) as error:
        numbers().for_each_batch("out", function)

    assert str(error.value).startswith("step 'out' at ")
    assert "test_for_each.py:" in str(error.value)


@pytest.mark.filterwarnings("ignore:coroutine 'later' was never awaited")
@pytest.mark.parametrize("function", [later, stepwise, stepwise_later])
@pytest.mark.parametrize("when", ["commit", "batch"])
def test_a_result_of_which_nothing_has_run_fails_and_the_rows_stay(
    function: Any, when: When, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ForEachSink(function, when)  # as a decorator may hide what it is
    kind = f"returned an? (coroutine|generator|async_generator), of which nothing has run.*{function.__name__}"
    if when == "batch":
        frame = SimpleNamespace(persist=lambda: frame, count=lambda: 1, unpersist=lambda: None)
        batch = SimpleNamespace(frame=frame, sequence=7, settle=lambda: None)
        monkeypatch.setattr("penstock.connectors.for_each.unpersist", lambda frame: None)
        with pytest.raises(UserFunctionError, match=f"^step 'out': .* in batch 7, {kind}"):
            BatchWriter(sink.function, cast("Any", SimpleNamespace(uid="out"))).write(cast("Any", batch))
        return
    filesystem = LocalFileSystem(tmp_path)
    filesystem.create("staged/rows", b"rows")
    monkeypatch.setattr("penstock.connectors.for_each.staged_frame", lambda *_: None)
    item = Committable(
        uid="out",
        kind="for-each/1",
        checkpoint=CheckpointId(2),
        target=sink.describe(),
        files=(FileRef(path="staged/rows", length=4, sha256=""),),
    )
    context = CommitContext(filesystem=filesystem, job="demo", spark=cast("Any", object()), sinks={"out": sink})

    with pytest.raises(UserFunctionError, match=f"^step 'out': .* in epoch 2, {kind}"):
        ForEachCommitter(context).commit(item)

    assert filesystem.read("staged/rows") == b"rows"


def test_when_is_one_of_two() -> None:
    with pytest.raises(GraphError, match="when is 'checkpoint', but must be 'commit' or 'batch'"):
        numbers().for_each_batch("out", save, when=cast("Any", "checkpoint"))


def test_it_says_what_it_guarantees() -> None:
    assert ForEachSink(save).guarantee is Guarantee.EXACTLY_ONCE
    assert ForEachSink(save, "batch").guarantee is Guarantee.AT_LEAST_ONCE
    assert ForEachSink(save).describe() == "for_each_batch save"
