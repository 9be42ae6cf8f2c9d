"""Pieces of state: written before a checkpoint asks, never past a named snapshot, deleted once nothing needs them."""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from penstock.clock import MIN_WATERMARK
from penstock.elements import RefCount
from penstock.errors import CheckpointAborted, LayerMissing, StorageFailed
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import FileRef, LayerRef, StateHandle
from penstock.state import compaction, durable, parquet
from penstock.state.compaction import PIECE_ROWS
from penstock.state.durable import DurableLayers, PendingLayers, group_of
from penstock.state.layers import Layer, LayerFormat, LayerStats
from penstock.state.parquet import HashSlice, LayerWriter
from penstock.state.stack import Stack

REFUSED = "disk full"
FORMAT = LayerFormat(
    uid="totals",
    keys=("k",),
    schema=StructType().add("k", StringType()).add("window_end", TimestampType()).add("n__sum", LongType()),
    merges={},
    partitions=2,
)


@dataclass
class Rows:
    """A frame: batches by number, each with the end of its only window."""

    ends: dict[int, int]

    def coalesce(self, _tasks: int) -> Rows:
        return self


@dataclass
class FakeWriter:
    """Keeps files in memory; ``during`` has what happens while one is written. Copies share all.

    A file has as many rows as its layers, or ``merged``.
    """

    files: dict[str, Rows] = field(default_factory=dict)
    merged: int = 0
    during: list[Callable[[], None]] = field(default_factory=list)
    background: Callable[[], AbstractContextManager[None]] = nullcontext
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    layers_format = FORMAT
    filesystem = session = None
    tasks = 1

    def write(self, rows: Any, stats: LayerStats, *, horizon: int, live_rows: int, are_files: bool = False) -> LayerRef:
        with self.background():
            found = rows(HashSlice(0, 1))
            for each in self.during:
                each()
        name = f"g1-{next(self.numbers):06d}"
        alive = Rows({number: end for number, end in found.ends.items() if end > horizon})
        file = FileRef(path=f"{name}/0000/part", length=len(alive.ends), sha256="")
        self.files[file.path] = alive
        detail = {"first_end": stats.first_end, "last_end": stats.last_end, "slices": 1, "by": ["k"]}
        assert live_rows >= 0
        # What a merge is told of rows is at most what is in memory, where windows may have closed that it still writes.
        count = max(len(alive.ends), self.merged or stats.rows) if alive.ends else 0
        return LayerRef(name=name, level=stats.level, rows=count, files=(file,), detail=detail)

    def discard(self, ref: LayerRef) -> None:
        for file in ref.files:
            del self.files[file.path]


class State:
    """A stack and its durable layers, with numbered batches for rows."""

    def __init__(self) -> None:
        self.slots = 0
        self.stack, self.writer = Stack(), FakeWriter(background=self._slot)
        self.durable = DurableLayers(self.stack, self.writer)  # type: ignore[arg-type]
        self.ends: dict[int, int] = {}
        self._numbers = itertools.count()

    def _slot(self) -> AbstractContextManager[None]:
        self.slots += 1
        return nullcontext()

    def batch(self, end: int = 100, *, rows: int = PIECE_ROWS) -> int:
        number = next(self._numbers)
        self.ends[number] = end
        self.stack.add(self.layer(Rows({number: end}), rows=rows))
        return number

    def layer(self, frame: Any, epoch: int = 0, *, rows: int = PIECE_ROWS) -> Layer:
        ends = frame.ends.values()
        return Layer(
            name=self.stack.next_name(),
            level=0,
            epoch=epoch,
            rows=rows,
            first_end=min(ends),
            last_end=max(ends),
            frame=frame,
            lease=RefCount(lambda: None),
        )

    def name(self) -> PendingLayers:
        return PendingLayers(self.durable, self.stack, self.stack.begin_snapshot())

    def checkpoint(self) -> StateHandle:
        return self.name().materialise()

    def merge(self, group: int) -> None:
        """Merge in memory all that may be merged, as compaction does."""
        layers, lease = self.stack.lease_named([size.name for size in self.stack.sized() if size.group == group])
        if len(layers) > 1:
            frames: Any = [layer.frame for layer in layers]
            merged = Rows({number: end for frame in frames for number, end in frame.ends.items()})
            self.stack.replace(layers, self.layer(merged, max(layer.epoch for layer in layers)))
        lease.release()

    def batches_of(self, handle: StateHandle) -> list[int]:
        """The batches in the files that a handle names, as often as they are there, but for those of closed windows."""
        assert isinstance(handle.detail, dict)
        horizon: Any = handle.detail["horizon"]
        found = [item for file in handle.files for item in self.writer.files[file.path].ends.items()]
        return sorted(number for number, end in found if end > (MIN_WATERMARK if horizon is None else horizon))


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> State:
    class Union:
        def __init__(self, _session: object) -> None: ...

        def stacked(self, _frames: object) -> None:
            return None

    def union(layers: Any) -> Rows:
        return Rows({number: end for layer in layers for number, end in layer.frame.ends.items()})

    def scan(_format: object, _filesystem: object, _session: object, files: Any) -> Rows:
        found = [made.writer.files[file.path] for _, paths in files for file in paths]
        return Rows({number: end for rows in found for number, end in rows.ends.items()})

    monkeypatch.setattr(durable, "CachedUnion", Union)
    monkeypatch.setattr(durable, "union_layers", union)
    monkeypatch.setattr(parquet, "scan_layers", scan)
    made = State()
    return made


def names(handle: StateHandle) -> list[str]:
    return [ref.name for ref in handle.layers]


def test_a_piece_is_due_once_a_layer_that_is_not_durable_has_enough_rows(state: State) -> None:
    for _ in range(3):
        state.batch(rows=PIECE_ROWS - 1)
    assert not state.durable.is_piece_due()
    state.batch()
    assert state.durable.is_piece_due()
    state.durable.write_piece()
    assert not state.durable.is_piece_due()
    assert len(state.writer.files) == 1


def test_windows_that_are_closed_by_the_next_checkpoint_as_things_go_make_no_piece(state: State) -> None:
    state.stack.close_windows(100)
    first = state.batch(end=200)
    assert state.durable.is_piece_due(), "nothing is known of how fast time goes"
    state.stack.close_windows(150)
    state.checkpoint()
    soon = state.batch(end=200)
    assert not state.durable.is_piece_due()
    later = state.batch(end=201)
    assert state.durable.is_piece_due()
    state.durable.write_piece()
    third = state.batch(end=200)
    assert not state.durable.is_piece_due()
    assert state.batches_of(state.checkpoint()) == [first, soon, later, third], "time stood: the checkpoint writes them"
    state.batch(end=200)
    assert state.durable.is_piece_due(), "and nothing is expected of it any more"


def test_windows_make_no_piece_where_time_goes_on_for_long_without_a_checkpoint(state: State) -> None:
    state.stack.close_windows(100)
    state.stack.close_windows(150)
    soon = state.batch(end=200)
    assert not state.durable.is_piece_due(), "no checkpoint yet: it may go from 100 to 200"
    later = state.batch(end=201)
    assert state.durable.is_piece_due()
    assert state.batches_of(state.checkpoint()) == [soon, later]
    state.stack.close_windows(250)
    state.batch(end=251)
    assert state.durable.is_piece_due(), "a checkpoint that is a little late changes nothing"
    state.stack.close_windows(251)
    state.batch(end=352)
    assert not state.durable.is_piece_due(), "150 to 251 is more than twice the 50 of before"
    state.batch(end=353)
    assert state.durable.is_piece_due()


def test_keys_that_are_few_change_again_and_wait_for_the_checkpoint(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "PIECE_ROWS", 1)
    for _ in range(2):
        state.batch(rows=1)
    state.durable.note_merge([500, 500], 9)
    assert state.durable.room == 9 / 4
    written = 0
    while state.durable.is_piece_due():
        state.durable.write_piece()
        written += 1
        state.batch(rows=1)
    assert (written, state.durable.room) == (1, 9 / 4 - 2)
    state.checkpoint()
    state.batch(rows=1)
    assert state.durable.is_piece_due()


def test_what_is_written_says_too_how_many_keys_change(state: State) -> None:
    state.writer.merged = PIECE_ROWS + 1
    state.batch()
    state.batch()
    state.checkpoint()
    assert state.durable.changing == pytest.approx(PIECE_ROWS, rel=0.001), "two layers of the same keys but one"
    state.batch()
    assert not state.durable.is_piece_due(), "so many do not fit into a quarter of the keys"
    state.checkpoint()
    assert state.durable.changing < 2 * PIECE_ROWS, "a layer alone says nothing"
    state.writer.merged = 0
    state.batch(rows=5)
    state.batch(rows=5)
    state.checkpoint()
    assert state.durable.changing < 2 * PIECE_ROWS, "few rows say nothing"


@pytest.mark.mission("L23")
def test_a_checkpoint_writes_only_what_came_after_the_last_piece(state: State) -> None:
    first = state.batch()
    state.durable.write_piece()
    second = state.batch()
    state.durable.write_piece()
    third = state.batch(rows=1)
    handle = state.checkpoint()
    assert [ref.rows for ref in handle.layers] == [PIECE_ROWS, PIECE_ROWS, 1]
    assert state.batches_of(handle) == [first, second, third]
    assert [group_of(ref) for ref in handle.layers] == [names(handle)[0]] * 3
    state.batch(rows=1)
    assert [group_of(ref) for ref in state.checkpoint().layers][2:] == [names(handle)[0], "g1-000004"]


def test_no_piece_begins_while_a_snapshot_is_named_and_not_written(state: State) -> None:
    before = state.batch()
    pending = state.name()
    state.batch()
    assert not state.durable.is_piece_due()
    state.durable.write_piece()
    assert state.writer.files == {}
    assert state.batches_of(pending.materialise()) == [before]
    assert state.durable.is_piece_due()


def test_nor_does_one_begin_while_a_snapshot_is_being_written(state: State) -> None:
    state.batch()
    tried: list[int] = []

    def during() -> None:
        state.durable.write_piece()
        tried.append(len(state.writer.files))

    state.writer.during.append(during)
    state.checkpoint()
    assert tried == [0]


def test_a_snapshot_named_while_a_piece_is_written_adds_what_came_meanwhile(state: State) -> None:
    pending: list[PendingLayers] = []
    first, meanwhile = state.batch(), []

    def during() -> None:
        if not pending:
            meanwhile.append(state.batch(rows=1))
            pending.append(state.name())
            state.batch(rows=1)

    state.writer.during.append(during)
    state.durable.write_piece()
    handle = pending[0].materialise()
    assert state.batches_of(handle) == [first, *meanwhile]
    assert [ref.rows for ref in handle.layers] == [PIECE_ROWS, 1]


def test_a_layer_that_was_being_made_when_a_piece_began_is_not_taken_for_written(state: State) -> None:
    first = state.batch()
    second = state.layer(Rows({7: 100}), state.stack.epoch)
    state.durable.write_piece()
    state.stack.add(second)
    assert state.durable.is_piece_due()
    assert state.batches_of(state.checkpoint()) == [first, 7]


def test_pieces_count_as_one_layer_in_the_limit(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    monkeypatch.setattr(durable, "plan_durable_compaction", lambda layers, **_: limits.append(len(layers)))
    for checkpoint in range(3):
        for _ in range(checkpoint + 1):
            state.batch()
            state.durable.write_piece()
        state.checkpoint()
    state.durable.plan()
    assert limits == [3]


def merge_all(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.state.compaction import Compaction

    def everything(layers: Any, **_: object) -> Compaction | None:
        return Compaction(names=tuple(layer.name for layer in layers), level=1, reason="test") if layers else None

    with monkeypatch.context() as patch:
        patch.setattr(durable, "plan_durable_compaction", everything)
        state.durable.compact()


@pytest.mark.mission("L14")
def test_a_piece_that_was_merged_before_any_snapshot_named_it_is_deleted(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        state.batch()
        state.durable.write_piece()
    read: list[int] = []
    state.writer.during.append(lambda: read.append(len(state.writer.files)))
    merge_all(state, monkeypatch)
    assert read == [3], "they are being read"
    assert list(state.writer.files) == ["g1-000004/0000/part"]
    assert state.batches_of(state.checkpoint()) == [0, 1, 2]


@pytest.mark.parametrize("replaced", [False, True], ids=["needed", "not needed any more"])
def test_a_merge_that_fails_is_told_unless_nothing_needs_it_any_more(
    state: State, monkeypatch: pytest.MonkeyPatch, *, replaced: bool
) -> None:
    for _ in range(2):
        state.batch()
        state.durable.write_piece()

    def fail() -> None:
        state.writer.during.clear()
        if replaced:  # by one layer, which a checkpoint has made durable
            state.stack.rebase(state.layer(Rows({0: 100, 1: 100})))
            state.checkpoint()
        raise LayerMissing(REFUSED, uid="totals")

    state.writer.during.append(fail)
    with nullcontext() if replaced else pytest.raises(LayerMissing, match=REFUSED):
        merge_all(state, monkeypatch)
    assert state.batches_of(state.checkpoint()) == [0, 1]
    merge_all(state, monkeypatch)
    assert state.batches_of(state.checkpoint()) == [0, 1]


@pytest.mark.parametrize(
    "refusal",
    [
        StorageFailed(REFUSED),
        OSError(errno.EIO, "Input/output error"),
        RuntimeError("Job aborted. Caused by: java.io.IOException: No space left on device"),
    ],
    ids=["penstock", "Python", "Spark"],
)
def test_a_merge_that_storage_refuses_changes_nothing_and_waits_for_a_checkpoint(
    state: State, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusal: Exception
) -> None:
    def full() -> None:
        raise refusal

    for _ in range(2):
        state.batch()
        state.checkpoint()
    state.writer.during.append(full)
    merge_all(state, monkeypatch)
    assert caplog.messages == [
        f"totals: Durable layers were not merged; that is tried again after a checkpoint: {refusal}"
    ]
    state.writer.during.clear()
    merge_all(state, monkeypatch)
    assert len(state.durable.refs) == 2
    assert state.batches_of(state.checkpoint()) == [0, 1]
    merge_all(state, monkeypatch)
    assert len(state.durable.refs) == 1
    assert state.batches_of(state.checkpoint()) == [0, 1]


@pytest.mark.mission("L14")
def test_a_piece_that_is_being_read_is_deleted_when_the_reader_has_ended(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        state.batch()
        state.durable.write_piece()
    handles: list[StateHandle] = []
    meanwhile: list[int] = []

    def replace_all() -> None:
        state.writer.during.clear()
        state.stack.rebase(state.layer(Rows({0: 100, 1: 100})))
        handles.append(state.checkpoint())
        meanwhile.append(len(state.writer.files))

    state.writer.during.append(replace_all)
    merge_all(state, monkeypatch)
    assert meanwhile == [3]
    assert [file.path for file in handles[0].files] == list(state.writer.files)
    assert state.batches_of(handles[0]) == [0, 1]


@pytest.mark.mission("L14")
def test_a_piece_that_a_snapshot_named_is_left_to_the_log(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    state.batch()
    state.durable.write_piece()
    state.batch()
    handle = state.checkpoint()
    merge_all(state, monkeypatch)
    state.checkpoint()
    assert state.batches_of(handle) == [0, 1]
    assert len(state.writer.files) == 3


def test_pieces_of_windows_that_have_closed_are_deleted(state: State) -> None:
    state.batch(end=10)
    state.durable.write_piece()
    state.stack.close_windows(10)
    state.batch(end=20)
    state.durable.write_piece()
    assert [list(rows.ends) for rows in state.writer.files.values()] == [[1]]


def test_pieces_are_in_vain_once_one_layer_replaces_all_and_none_is_written_after_that(state: State) -> None:
    state.batch()
    state.durable.write_piece()
    merged = state.layer(Rows({0: 100}))
    state.stack.rebase(merged)
    assert not state.durable.is_piece_due()
    handle = state.checkpoint()
    assert (names(handle), list(state.writer.files)) == (["g1-000002"], ["g1-000002/0000/part"])
    state.batch()
    assert not state.durable.is_piece_due()


def test_a_piece_that_fails_is_not_tried_again_before_a_checkpoint_which_writes_its_rows(state: State) -> None:
    def full() -> None:
        raise StorageFailed(REFUSED)

    state.batch()
    state.writer.during.append(full)
    state.durable.write_piece()
    assert not state.durable.is_piece_due()
    state.writer.during.clear()
    assert state.batches_of(state.checkpoint()) == [0]
    state.batch()
    assert state.durable.is_piece_due()


def test_a_dead_piece_whose_files_cannot_be_deleted_changes_nothing_for_later_ones(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_self: FakeWriter, _ref: LayerRef) -> None:
        raise OSError(REFUSED)

    state.batch(end=10)
    state.durable.write_piece()
    state.stack.close_windows(10)
    state.batch()
    with monkeypatch.context() as patched:
        patched.setattr(FakeWriter, "discard", refused)
        state.durable.write_piece()
    state.batch()
    state.merge(0)
    state.merge(1)
    assert state.batches_of(state.checkpoint()) == [1, 2]


def test_files_that_may_not_be_deleted_are_left_to_the_next_claim(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def immutable(*_: object, **_named: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    disk = LocalFileSystem(tmp_path)
    disk.create("state/totals/1/g1-000001/0000/part", b"rows")
    monkeypatch.setattr(Path, "unlink", immutable)
    writer = LayerWriter(
        layers_format=FORMAT,
        filesystem=disk,
        folder="state/totals/1",
        prefix="g1-",
        session=None,  # type: ignore[arg-type]
        tasks=1,
        background=nullcontext,
        failpoint=lambda _name: None,
    )
    writer.discard(LayerRef(name="g1-000001", level=0, rows=1, files=()))
    assert [*disk.list("state")] == ["state/totals/1/g1-000001/0000/part"]


def test_a_lost_block_restarts_the_job_whoever_finds_it(state: State) -> None:
    def lost() -> None:
        raise LayerMissing(REFUSED, uid="totals")

    state.batch()
    state.writer.during.append(lost)
    with pytest.raises(LayerMissing):
        state.durable.write_piece()
    state.writer.during.clear()
    assert state.batches_of(state.checkpoint()) == [0], "it holds nothing"


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens_in_whatever_order_a_handle_has_each_batch_before_its_barrier_once(  # noqa: PLR0915
    state: State, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    pending: list[tuple[PendingLayers, list[int], int]] = []
    handles: list[tuple[StateHandle, list[int]]] = []
    clock, depth = 0, 0

    def alive() -> list[int]:
        return [number for number, end in state.ends.items() if end > clock]

    def name() -> None:
        while pending:
            pending.pop()[0].give_up()
        pending.append((state.name(), alive(), clock))

    def small_step() -> None:
        nonlocal clock
        match chance.choice(["batch", "batch", "merge", "name", "close", "rebase"]):
            case "batch":
                state.batch(clock + chance.randrange(1, 60))
            case "merge":
                state.merge(chance.randrange(3))
            case "name":
                name()
            case "close":
                clock += chance.randrange(20)
                state.stack.close_windows(clock)
            case "rebase" if seed % 3 == 0 and alive():
                state.stack.rebase(state.layer(Rows({n: state.ends[n] for n in alive()})))

    def during() -> None:
        nonlocal depth
        depth += 1
        if depth == 1:
            for _ in range(chance.randrange(3)):
                small_step()
        depth -= 1
        if chance.random() < 0.1:
            raise StorageFailed(REFUSED)

    state.writer.during.append(during)
    for _ in range(60):
        match chance.choice(["small", "small", "piece", "piece", "write", "compact"]):
            case "small":
                small_step()
            case "piece":
                state.durable.write_piece()
            case "write" if pending:
                snapshot, expected, horizon = pending.pop()
                try:
                    handle = snapshot.materialise()
                except (StorageFailed, CheckpointAborted):
                    continue
                assert state.batches_of(handle) == sorted(expected), horizon
                handles.append((handle, expected))
            case "compact":
                merge_all(state, monkeypatch)
    for handle, expected in handles:
        assert state.batches_of(handle) == sorted(expected), "a file that a checkpoint may need is gone"
    needed = {file.path for handle, _ in handles for file in handle.files}
    needed |= {file.path for ref in state.durable.refs for file in ref.files}
    assert set(state.writer.files) == needed, "files that nothing needs are left"


def test_a_piece_takes_no_slot_but_that_of_its_caller(state: State) -> None:
    """A snapshot that waits for a piece keeps other work from slots: a piece that then waited for one would not end."""
    state.batch()
    state.durable.write_piece()
    assert state.slots == 0
    state.batch()
    state.checkpoint()
    assert state.slots == 1
