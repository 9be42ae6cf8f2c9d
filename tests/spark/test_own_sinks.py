"""Sinks of a user's own in whole jobs: what is refused before the first row, and who publishes what is left."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest

import penstock as ps
from core.cli_kit import say
from penstock.api.pipeline import PipelineDefinition
from penstock.checkpoint.log import read_history
from penstock.connectors.staging import StagedWriter, staged_table
from penstock.errors import GraphError
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CommitOutcome, Committable, Guarantee
from penstock.interfaces.sink import CommitContext, SinkContext, SinkWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class OnceSink:
    """Stages rows for a committer; ``committers`` may be missing, as in a first try."""

    committers: dict[str, str] = field(default_factory=dict)
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE

    def check(self, schema: StructType) -> None:
        pass

    def writer(self, context: SinkContext) -> SinkWriter:
        return StagedWriter(context, kind="sqlite/1", target="copy.db")

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:
        return ()

    def describe(self) -> str:
        return "sqlite copy.db"


class Committer:
    """Keeps rows by epoch; breaks while it is told to."""

    epochs: ClassVar[dict[tuple[str, int], list[int]]] = {}
    breaks: ClassVar[list[Exception]] = []

    def __init__(self, context: CommitContext) -> None:
        self._filesystem = context.filesystem

    def commit(self, item: Committable) -> CommitOutcome:
        if self.breaks:
            raise self.breaks[0]
        if (item.uid, item.checkpoint) in self.epochs:
            return CommitOutcome.ALREADY_DONE
        self.epochs[item.uid, item.checkpoint] = staged_table(item, self._filesystem)["n"].to_pylist()
        return CommitOutcome.DONE

    def void(self, item: Committable) -> CommitOutcome:
        self.epochs.setdefault((item.uid, item.checkpoint), [])
        return CommitOutcome.DONE


@pytest.fixture
def committer(monkeypatch: pytest.MonkeyPatch) -> type[Committer]:
    """The user's committer in module ``mylib``."""
    module = ModuleType("mylib")
    cast("Any", module).Committer = Committer
    monkeypatch.setitem(sys.modules, "mylib", module)
    monkeypatch.setattr(Committer, "epochs", {})
    monkeypatch.setattr(Committer, "breaks", [])
    return Committer


def numbers(sink: OnceSink) -> PipelineDefinition:
    @ps.pipeline("once")
    def once(p: ps.Pipeline) -> None:
        p.read("in", ps.generator.Source(lambda frame: frame, rows=40, per_batch=20)).write("target", cast("Any", sink))

    return once


def test_an_exactly_once_sink_that_names_no_committer_is_refused_before_the_first_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(
        GraphError, match=r"'target' .*sqlite copy\.db promises exactly-once, but has no.*committers = "
    ):
        ps.Job(numbers(OnceSink()), state=tmp_path, spark=spark).run()

    assert read_history(LocalFileSystem(tmp_path / "once"), "once").is_empty


def test_output_of_a_kind_that_a_sink_does_not_name_never_gets_into_the_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = OnceSink(guarantee=Guarantee.AT_LEAST_ONCE)

    for _ in range(2):
        with pytest.raises(
            GraphError, match=r"'target'.*sqlite copy\.db hands over output of kind 'sqlite/1', for which"
        ):
            ps.Job(numbers(sink), state=tmp_path, spark=spark).run()

    assert read_history(LocalFileSystem(tmp_path / "once"), "once").open_committables == ()


def test_what_a_users_committer_left_is_published_by_a_command_or_the_next_start(
    spark: SparkSession, tmp_path: Path, committer: type[Committer]
) -> None:
    pipeline = numbers(OnceSink({"sqlite/1": "mylib:Committer"}))
    committer.breaks.append(RuntimeError("no such table"))
    with pytest.raises(
        ps.UserFunctionError, match=r"'mylib:Committer' of #\d+ of 'target' raised RuntimeError: no such"
    ):
        ps.Job(pipeline, state=tmp_path, spark=spark).run()
    history = read_history(LocalFileSystem(tmp_path / "once"), "once")
    assert {item.committer for item in history.open_committables} == {"mylib:Committer"}

    committer.breaks.clear()
    assert say("settle", "once", "--state", str(tmp_path)).code == 0
    ps.Job(pipeline, state=tmp_path, spark=spark).run()

    assert sorted(row for rows in committer.epochs.values() for row in rows) == list(range(40))
