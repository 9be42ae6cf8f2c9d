"""Who publishes a committable: penstock's own by its kind, a user's by the class that the log names."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from core.cli_kit import say
from core.looking_kit import GONE, taken, write_log
from penstock.checkpoint.entry_codec import COMMITTABLES
from penstock.checkpoint.log import read_history
from penstock.connectors.committers import (
    COMMITTERS,
    check_committers,
    check_open,
    committer,
    open_writer,
    publish,
    void,
)
from penstock.connectors.files.committer import FilesCommitter
from penstock.connectors.files.sink import Sink as FilesSink
from penstock.connectors.for_each import ForEachCommitter, ForEachSink
from penstock.connectors.memory import Sink as MemorySink
from penstock.dead_letters.store import DeadLetterSink
from penstock.errors import CommitFailed, CommitterMissing, GraphError, StateIncompatible, UserFunctionError
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CheckpointId, CommitOutcome, Committable, Guarantee
from penstock.interfaces.sink import CommitContext

ITEM = Committable(uid="out", kind="sqlite/1", checkpoint=CheckpointId(2), target="copy.db", files=(), detail={"n": 1})
OURS = replace(ITEM, committer="mylib:SqliteCommitter")


class SqliteCommitter:
    """As a user would write one."""

    done: list[CheckpointId]

    def __init__(self, context: CommitContext) -> None:
        self.context = context

    def commit(self, item: Committable) -> CommitOutcome:
        self.done.append(item.checkpoint)
        return CommitOutcome.DONE

    def void(self, item: Committable) -> CommitOutcome:
        self.done.append(CheckpointId(-item.checkpoint))
        return CommitOutcome.DONE


@pytest.fixture
def mylib(monkeypatch: pytest.MonkeyPatch) -> type[SqliteCommitter]:
    """The user's module; gives its committer."""
    module = ModuleType("mylib")
    monkeypatch.setattr(SqliteCommitter, "done", [], raising=False)
    cast("Any", module).SqliteCommitter = SqliteCommitter
    cast("Any", module).NoVoid = type("NoVoid", (), {"commit": None})
    monkeypatch.setitem(sys.modules, "mylib", module)
    return SqliteCommitter


@pytest.fixture
def context(tmp_path: Path) -> CommitContext:
    return CommitContext(filesystem=LocalFileSystem(tmp_path), job="orders")


# ---- in the log ------------------------------------------------------------------------------------------------------


def test_a_committer_is_recorded_and_one_of_penstock_changes_no_bytes() -> None:
    for item in (ITEM, OURS):
        document = json.loads(json.dumps(COMMITTABLES.to_json(item)))
        assert COMMITTABLES.from_json(document, "x") == item
        assert document.pop("committer", "") == item.committer
        assert list(document) == ["uid", "kind", "checkpoint", "target", "files", "detail"]


def test_a_recorded_class_is_found_by_importing_it(mylib: type[SqliteCommitter], context: CommitContext) -> None:
    found = committer(OURS, context)

    assert isinstance(found, mylib)
    assert found.context is context
    assert isinstance(committer(replace(ITEM, kind="files/1"), context), FilesCommitter)


@pytest.mark.parametrize(
    ("item", "told"),
    [
        (ITEM, r"The log names no committer for it, and this penstock knows files/1, for-each/1, kafka/1, memory/1"),
        (OURS, r"'mylib:SqliteCommitter' cannot be imported here \(ModuleNotFoundError: No module named 'mylib'\)"),
        (replace(ITEM, committer="json:Commiter"), "Module 'json' has no committer 'Commiter'"),
    ],
)
def test_what_cannot_be_published_says_so_with_a_remedy(item: Committable, told: str, context: CommitContext) -> None:
    with pytest.raises(CommitterMissing, match=told) as error:
        check_open([item], context)

    assert str(error.value).startswith("step 'out': Output #2 of 'out' of kind 'sqlite/1' waits to be published to")
    assert "penstock rewind orders --fresh --discard-unpublished" in str(error.value)


# ---- before the first row --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnSink:
    """As much of a sink as is asked of it before a start."""

    committers: dict[str, str] = field(default_factory=dict)
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE

    def describe(self) -> str:
        return "sqlite copy.db"


@pytest.mark.parametrize(
    ("committers", "told"),
    [
        ({}, r"sqlite copy\.db promises exactly-once, but has no attribute 'committers'.*AT_LEAST_ONCE"),
        (
            {"sqlite/1": "mylob:SqliteCommitter"},
            r"kind 'sqlite/1', could never be published. Committer .*No module named 'mylob'",
        ),
        ({"sqlite/1": "mylib:SqlteCommitter"}, r"has no committer 'SqlteCommitter'. Did you mean 'SqliteCommitter'\?"),
        ({"sqlite/1": "mylib:NoVoid"}, r"'mylib:NoVoid' is no committer: it has no method void"),
        ({"sqlite/1": "SqliteCommitter"}, r"'SqliteCommitter' is not module:class.*'sqlite/1': 'module:class'"),
        (
            {"sqlite/1": "__main__:SqliteCommitter"},
            r"in the script that was started, which no other process can import",
        ),
        ({"files/1": "mylib:SqliteCommitter"}, r"kind 'files/1', which is penstock's own. Give the kind a name"),
    ],
)
@pytest.mark.usefixtures("mylib")
def test_a_sink_whose_output_could_never_be_published_is_refused(committers: dict[str, str], told: str) -> None:
    with pytest.raises(GraphError, match=told):
        check_committers(cast("Any", OwnSink(committers)))


@pytest.mark.usefixtures("mylib")
def test_a_sink_that_says_who_publishes_is_taken_and_one_without_commits_too(tmp_path: Path) -> None:
    accepted: list[Any] = [
        OwnSink({"sqlite/1": "mylib:SqliteCommitter"}),
        OwnSink({}, Guarantee.AT_LEAST_ONCE),
        FilesSink(tmp_path),
        MemorySink(),
        DeadLetterSink(),
        ForEachSink(print),
        ForEachSink(print, "batch"),
    ]
    for sink in accepted:
        check_committers(sink)


@pytest.mark.parametrize("kind", COMMITTERS)
def test_each_kind_of_our_own_has_its_committer(kind: str, context: CommitContext) -> None:
    found = committer(replace(ITEM, kind=kind), context)
    assert callable(found.commit)
    assert callable(found.void)


# ---- what a writer hands over ----------------------------------------------------------------------------------------


class Handing:
    """A sink and its writer that hand over what they are given."""

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, item: Committable, **committers: str) -> None:
        self.item = item
        self.committers = committers

    def writer(self, _context: object) -> Handing:
        return self

    def prepare(self, _checkpoint: CheckpointId) -> Handing:
        return self

    def materialise(self) -> list[Committable]:
        return [self.item]

    def write(self, _batch: object) -> None:
        return None

    def describe(self) -> str:
        return "sqlite copy.db"


def test_what_is_handed_over_gets_the_committer_that_the_sink_names() -> None:
    sink = Handing(ITEM)
    sink.committers = {"sqlite/1": "mylib:SqliteCommitter"}
    assert open_writer(cast("Any", sink), cast("Any", None)).prepare(CheckpointId(2)).materialise() == (OURS,)
    own = replace(ITEM, kind="files/1")
    assert open_writer(cast("Any", Handing(own)), cast("Any", None)).prepare(CheckpointId(2)).materialise() == (own,)


def test_a_kind_that_the_sink_does_not_name_is_refused_before_it_is_in_the_log_and_nothing_goes_on() -> None:
    writer = open_writer(cast("Any", Handing(ITEM)), cast("Any", None))
    prepared = writer.prepare(CheckpointId(2))

    with pytest.raises(GraphError, match=r"kind 'sqlite/1', for which it names no committer.*\{'sqlite/1': 'module:cl"):
        prepared.materialise()

    for goes_on in (lambda: writer.prepare(CheckpointId(3)), lambda: writer.write(cast("Any", None))):
        with pytest.raises(GraphError, match="kind 'sqlite/1'"):
            goes_on()


# ---- output that nothing here can publish ----------------------------------------------------------------------------


def test_it_is_given_up_by_a_discard_with_a_warning(context: CommitContext, caplog: pytest.LogCaptureFixture) -> None:
    assert void(ITEM, context) is CommitOutcome.DONE
    assert "discarded but cannot be voided in copy.db" in caplog.text


@pytest.mark.parametrize("item", [ITEM, OURS], ids=["unnamed", "gone"])
@pytest.mark.parametrize("target", ["0", "--fresh"])
def test_the_remedy_of_the_error_gets_rid_of_it(tmp_path: Path, item: Committable, target: str) -> None:
    write_log(tmp_path, GONE, taken(0, None), taken(2, 0, open=(item,)))
    state = ("--state", str(tmp_path))

    stuck = say("settle", "orders", *state)
    said = say("rewind", "orders", target, "--discard-unpublished", "--yes", *state)
    after = say("settle", "orders", *state)

    assert stuck.code == 65
    assert "penstock rewind orders --fresh --discard-unpublished" in stuck.err
    assert said.code == 0
    assert "  ! Output #2 of 'out' is discarded but cannot be voided in copy.db" in said.err
    assert after.code == 0
    history = read_history(LocalFileSystem(tmp_path / "orders"), "orders")
    assert history.open_committables == history.to_void == ()


def test_a_users_committer_publishes_and_voids_in_commands(mylib: type[SqliteCommitter], tmp_path: Path) -> None:
    write_log(tmp_path, GONE, taken(0, None), taken(2, 0, open=(OURS,)))
    state = ("--state", str(tmp_path))

    dry = say("rewind", "orders", "0", "--discard-unpublished", "--dry-run", *state)
    assert (dry.code, "cannot be voided" in dry.err) == (0, False)
    assert say("settle", "orders", *state).code == 0
    assert mylib.done == [2]

    write_log(tmp_path / "again", GONE, taken(0, None), taken(2, 0, open=(OURS,)))
    said = say("rewind", "orders", "0", "--discard-unpublished", "--yes", "--state", str(tmp_path / "again"))
    assert said.code == 0
    assert mylib.done == [2, -2]


@pytest.mark.parametrize(
    ("raised", "kind", "told"),
    [
        (ConnectionResetError("gone"), CommitFailed, "raised ConnectionResetError: gone. It is called again"),
        (CommitFailed("later"), CommitFailed, "later"),
        (FileNotFoundError("no such file"), UserFunctionError, "FileNotFoundError: no such file"),
        (KeyError("log"), UserFunctionError, r"'mylib:SqliteCommitter' of #2 of 'out' raised KeyError: 'log'"),
        (StateIncompatible("other"), StateIncompatible, "other"),
    ],
)
def test_what_a_users_committer_raises_says_so(
    mylib: type[SqliteCommitter],
    context: CommitContext,
    monkeypatch: pytest.MonkeyPatch,
    raised: Exception,
    kind: type[Exception],
    told: str,
) -> None:
    def fails(_committer: SqliteCommitter, _item: Committable) -> CommitOutcome:
        raise raised

    for verb, act in (("commit", publish), ("void", void)):
        monkeypatch.setattr(mylib, verb, fails)
        with pytest.raises(kind, match=told) as error:
            act(OURS, context)
        if kind is UserFunctionError:
            assert "test_committers.py:" in str(error.value)


# ---- for_each_batch --------------------------------------------------------------------------------------------------


@pytest.fixture
def waiting(tmp_path: Path) -> Committable:
    """Two staged files of a for_each_batch step."""
    files = LocalFileSystem(tmp_path)
    refs = []
    for name in ("part-0.parquet", "part-1.parquet"):
        files.create(f"staged/out/1/0/{name}", b"rows")
        refs.append(files.settle(f"staged/out/1/0/{name}"))
    return replace(ITEM, kind="for-each/1", files=tuple(refs), target="for_each_batch save")


def test_its_output_is_voided_without_the_pipeline_and_called_never(
    waiting: Committable, context: CommitContext
) -> None:
    assert void(waiting, context) is CommitOutcome.DONE
    assert void(waiting, context) is CommitOutcome.DONE
    assert committer(waiting, context).commit(waiting) is CommitOutcome.ALREADY_DONE


def test_its_output_waits_for_a_pipeline_that_has_the_function(waiting: Committable, context: CommitContext) -> None:
    with pytest.raises(CommitterMissing, match=r"Its function is in the pipeline. Start the job"):
        ForEachCommitter(context).commit(waiting)
    for sink in (MemorySink(), ForEachSink(print, "batch")):
        other = replace(context, sinks={"out": sink})
        with pytest.raises(CommitterMissing, match=r"no for_each_batch\('out', …\).*--discard-unpublished"):
            check_open([waiting], other)
    check_open([waiting], replace(context, sinks={"out": ForEachSink(print)}))


def test_output_that_the_function_got_asks_for_no_function(waiting: Committable, context: CommitContext) -> None:
    context.filesystem.delete(waiting.files[0].path)

    check_open([waiting], context)

    assert committer(waiting, context).commit(waiting) is CommitOutcome.ALREADY_DONE
    assert void(waiting, context) is CommitOutcome.ALREADY_DONE
