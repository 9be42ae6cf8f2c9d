"""Sources that are given rows: acknowledged when durable, read once, kept until no checkpoint needs them."""

import errno
import os
import threading

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

import penstock as ps
from core.receivers_kit import PATIENCE, SCHEMA, Given, Job, ask, ask_until_it_fails, attempts, numbered, read, rows
from penstock.clock import MonotonicTime
from penstock.connectors.receivers import Source, blocks
from penstock.connectors.receivers.blocks import decode_block, encode_block
from penstock.errors import (
    CheckpointUnreadable,
    DecodeError,
    GenerationFenced,
    GraphError,
    SourceUnavailable,
    StateIncompatible,
    StorageFailed,
)
from penstock.facts import SourceLag
from penstock.filesystem import local
from penstock.filesystem.local import LocalFileSystem
from penstock.graph.validate import validate
from penstock.interfaces.source import BatchTicks, CaughtUp, Ended, NoData, PlannedBatch, SourceContext, Until
from penstock.testing.filesystem import MemoryFileSystem


@pytest.fixture(params=["memory", "disk"])
def job(request, tmp_path):
    job = Job(MemoryFileSystem() if request.param == "memory" else LocalFileSystem(tmp_path / "state"))
    yield job
    job.close()


@pytest.fixture
def on_disk(tmp_path):
    job = Job(LocalFileSystem(tmp_path / "state"))
    yield job
    job.close()


# ------------------------------------------------------------------------------------------------------ blocks as bytes


def test_a_block_is_read_back_with_its_rows():
    table = pa.table({"id": [1, 2], "name": ["a", None]})

    assert decode_block(encode_block(table), "here").equals(table)


@pytest.mark.parametrize("harm", [lambda b: b[:-1], lambda b: b"", lambda b: b[:9] + b"?" + b[10:], lambda b: b[1:]])
def test_a_damaged_block_is_refused_with_its_name(harm):
    block = encode_block(pa.table({"id": [1, 2]}))

    with pytest.raises(CheckpointUnreadable, match="wal/in/0/7 is damaged"):
        decode_block(harm(block), "wal/in/0/7")


def test_other_readers_of_arrow_read_a_block():
    block = encode_block(pa.table({"id": [1, 2]}))

    assert pa.ipc.open_stream(block).read_all().to_pydict() == {"id": [1, 2]}


# ------------------------------------------------------------------------------------------------------ acknowledging


def test_what_is_acknowledged_is_on_the_disk(job):
    job.open()
    job.store().store_reliably(numbered(1, 2))

    assert len(job.blocks) == 1
    assert read(job.reader) == numbered(1, 2)


def test_rows_may_be_dictionaries_tuples_or_arrow(job):
    job.open()
    store = job.store()
    store.store_reliably([{"id": 1}, {"name": "two", "id": 2}])
    store.store_reliably([(3, None)])
    store.store_reliably(pa.table({"name": ["four"], "id": pa.array([4], pa.int32())}))

    assert read(job.reader) == [(1, None), (2, "two"), (3, None), (4, "four")]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([{"id": 1, "nme": "a"}], "nme, which are not declared"),
        ([(1,)], "there are 2 columns"),
        (["text"], "there are 2 columns"),
        ([("one", "a")], "does not fit"),
        ([{"id": 1 << 70}], "does not fit"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_none_of_them_is_taken(job, wrong, message):
    job.open()
    store = job.store()

    with pytest.raises(DecodeError, match=message):
        store.store_reliably([*numbered(0), *wrong])
    store.store_reliably(numbered(1))

    assert read(job.reader) == numbered(1)


def test_callers_that_wait_at_the_same_moment_share_a_block(job):
    job.open(block_interval_ms=3_600_000, block_bytes=1_000)
    store = job.store()
    callers = [threading.Thread(target=store.store_reliably, args=(numbered(id),)) for id in range(8)]
    for caller in callers:
        caller.start()
    seconds = 1
    while job.facts[-1].rows < len(callers):  # until all of them wait
        seconds += 1
        ask(job.reader, now=seconds * 1_000_000)
    assert job.blocks == []
    store.store_reliably(numbered(*range(100, 200)))  # its bytes make the block due
    for caller in callers:
        caller.join(PATIENCE)

    assert len(job.blocks) == 1
    assert sorted(read(job.reader)) == numbered(*range(8), *range(100, 200))


def test_a_reader_that_waits_for_rows_gets_them_before_the_interval_ends(job, monkeypatch):
    monkeypatch.setattr(blocks, "_GATHERING", 0.00001)
    job.open(block_interval_ms=3_600_000)
    store = job.store()  # it asks for rows, and there are none
    store.store_reliably(numbered(1))

    assert read(job.reader) == numbered(1)


def test_with_a_batch_clock_rows_collect_for_the_whole_interval(job):
    job.open(block_interval_ms=100, ticks=BatchTicks(interval=1))
    job.store()
    job.ask(wall=5)

    assert not job.reader._writer._is_awaited


def test_a_store_that_does_not_wait_is_written_at_the_latest_when_the_source_stops(job):
    job.open(block_interval_ms=3_600_000)
    job.store().store(numbered(1))
    job.reader.close()

    assert read(job.open(until=Until.CAUGHT_UP)) == numbered(1)


@pytest.mark.parametrize("how", ["lose_answer", "delay", "fail"])
def test_a_write_that_fails_fails_every_caller_and_nothing_is_written_after_it(how):
    filesystem = MemoryFileSystem()
    job = Job(filesystem)
    job.open()
    store = job.store()
    error = (StorageFailed("The disk is full."),) if how == "fail" else ()
    getattr(filesystem, how)("create", *error, path="wal/*")

    for _ in range(2):
        with pytest.raises(StorageFailed):
            store.store_reliably(numbered(1))

    with pytest.raises(StorageFailed) as raised:
        ask(job.reader)
    assert raised.value.uid == "in"
    job.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("place", ["write", "fsync", "link", "folder"])
def test_an_error_of_the_disk_at_any_place_acknowledges_nothing_and_loses_nothing(on_disk, monkeypatch, number, place):
    job = on_disk
    job.open()
    store = job.store()
    store.store_reliably(numbered(1))

    def fail(*_arguments):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        if place == "write":
            broken.setattr(local.LocalFileSystem, "_write_temporary", fail)
        else:
            broken.setattr(
                *{"fsync": (local, "_sync"), "link": (os, "link"), "folder": (local, "_sync_folder")}[place], fail
            )
        with pytest.raises(StorageFailed):
            store.store_reliably(numbered(2))
    job.reader.close()

    again = job.open()
    job.store().store_reliably(numbered(3))
    found = job.early + read(again)
    assert [row for row in found if row[0] != 2] == numbered(1, 3)
    assert len(found) <= 3


def test_G5_rows_of_a_fenced_job_are_not_acknowledged(job):
    first = job.open()
    store = job.store()
    store.store_reliably(numbered(1))
    job.open()

    with pytest.raises(GenerationFenced):
        store.store_reliably(numbered(2))
    with pytest.raises(GenerationFenced):
        ask(first)
    job.store().store_reliably(numbered(3))
    assert job.early + read(job.reader) == numbered(1, 3)


def test_files_are_for_this_user_alone(on_disk, tmp_path):
    on_disk.open()
    on_disk.store().store_reliably(numbered(1))

    block = next((tmp_path / "state" / "wal").rglob("*.block"))
    assert block.stat().st_mode & 0o777 == 0o600
    assert block.parent.stat().st_mode & 0o777 == 0o700


# ------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.mission("S24")
@pytest.mark.parametrize("limit", [1, 2, 3, None])
def test_a_batch_takes_no_more_than_it_may_and_a_restart_goes_on_within_a_block(job, limit):
    job.open()
    store = job.store()
    for ids in ((1, 2, 3, 4, 5), (6,), (7, 8)):
        store.store_reliably(numbered(*ids))
    first = ask(job.reader, rows=limit)
    position = job.reader.position()
    job.reader.close()

    found = rows(first) + read(job.open(position), rows=limit)

    assert found == numbered(*range(1, 9))
    assert limit is None or first.rows == limit


@pytest.mark.mission("S22", "S23")
def test_all_that_was_received_is_the_next_batch_and_no_more_than_a_batch_may_have(job):
    job.open()
    store = job.store()
    for id in range(20):  # a block each, as if as many ticks had been missed
        store.store_reliably(numbered(id))
    start = job.reader.position()

    assert rows(ask(job.reader)) == numbered(*range(20))
    assert isinstance(ask(job.reader), NoData), "what was allocated to a batch is allocated to no other"
    job.reader.close()
    capped = job.open(start)
    assert rows(ask(capped, rows=15)) == numbered(*range(15))
    assert rows(ask(capped, rows=15)) == numbered(*range(15, 20))


@pytest.mark.mission("S19")
def test_what_was_planned_and_is_in_no_checkpoint_is_planned_again_after_a_restart(job):
    job.open()
    job.store().store_reliably(numbered(1, 2))
    start = job.reader.position()
    planned = rows(ask(job.reader))
    job.reader.close()

    assert read(job.open(start)) == planned == numbered(1, 2)


@pytest.mark.mission("S24")
def test_a_damaged_block_stops_the_source_with_its_name_the_last_one_too(on_disk, tmp_path):
    on_disk.open()
    on_disk.store().store_reliably(numbered(1))
    on_disk.reader.close()
    block = next((tmp_path / "state" / "wal").rglob("*.block"))
    block.write_bytes(block.read_bytes()[:-1])

    with pytest.raises(CheckpointUnreadable, match=block.name):
        ask(on_disk.open())


def test_what_a_crash_left_half_written_is_removed(on_disk, tmp_path):
    on_disk.open()
    on_disk.store().store_reliably(numbered(1))
    on_disk.reader.close()
    torn = next((tmp_path / "state" / "wal").rglob("*.block")).with_name(".penstock-tmp-1-1")
    torn.write_bytes(b"half a block")

    assert read(on_disk.open()) == numbered(1)
    assert not torn.exists()


def test_a_run_until_caught_up_reads_what_is_kept_and_receives_nothing(job):
    job.open()
    job.store().store_reliably(numbered(1))
    job.reader.close()

    reader = job.open(until=Until.CAUGHT_UP)

    assert read(reader) == numbered(1)
    assert ask(reader) == CaughtUp()
    assert not job.receiver.started.is_set()


def test_the_source_ends_when_the_receiver_returns_and_all_is_read(job):
    job.open(block_interval_ms=3_600_000)
    job.store().store(numbered(1))
    job.receiver.over.set()
    found = []
    for _ in range(1_000_000):
        poll = ask(job.reader)
        if isinstance(poll, Ended):
            break
        found += rows(poll) if isinstance(poll, PlannedBatch) else []

    assert poll == Ended()
    assert found == numbered(1)


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (
            ValueError("No such device"),
            SourceUnavailable,
            "step 'in': The receiver failed: ValueError: No such device.",
        ),
        (SourceUnavailable("Gone."), SourceUnavailable, "step 'in': Gone."),
    ],
)
def test_a_receiver_that_fails_fails_the_source_and_what_it_stored_is_kept(job, error, expected, message):
    job.open()
    job.store().store_reliably(numbered(1))
    job.receiver.errors.append(error)
    job.receiver.over.set()

    with pytest.raises(expected) as raised:
        ask_until_it_fails(job.reader)
    assert str(raised.value) == message
    assert raised.value.retry
    job.reader.close()
    assert read(job.open()) == numbered(1)


def test_rows_are_refused_once_the_source_stops(job):
    job.open()
    store = job.store()
    job.reader.close()

    with pytest.raises(SourceUnavailable, match="takes no more rows"):
        store.store(numbered(1))


@pytest.mark.mission("S27")
def test_blocks_are_deleted_only_when_every_checkpoint_that_can_be_restored_is_past_them(job):
    job.open()
    store = job.store()
    for id in range(4):
        store.store_reliably(numbered(id))
    kept = []
    for number in range(4):
        ask(job.reader, rows=1)
        job.checkpoint(number, retained=2)
        kept.append(len(job.blocks))

    assert kept == [3, 3, 2, 1]  # the last one tells a successor where to seal


# ------------------------------------------------------------------------------------------- back-pressure and backlog


@pytest.mark.parametrize("limit", [{"max_backlog_rows": 2}, {"max_backlog_bytes": 1}])
def test_storing_waits_while_too_much_is_not_read(job, limit):
    job.open(**limit)
    store = job.store()
    store.store_reliably(numbered(1, 2))
    done = threading.Event()
    waiting = threading.Thread(target=lambda: (store.store(numbered(3)), done.set()))
    waiting.start()
    assert not done.is_set()

    found = rows(ask(job.reader))
    assert done.wait(PATIENCE)
    job.reader.close()
    waiting.join(PATIENCE)

    assert found + read(job.open()) == numbered(1, 2, 3) or found + read(job.readers[0]) == numbered(1, 2, 3)


def test_the_backlog_is_reported_once_a_second(job):
    job.open()
    store = job.store()
    store.store_reliably(numbered(1, 2, 3))
    ask(job.reader, now=2_000_000, rows=1)
    ask(job.reader, now=2_500_000, rows=1)
    ask(job.reader, now=3_000_000, rows=1)

    reported = [fact.rows for fact in job.facts if isinstance(fact, SourceLag)]
    assert reported == [0, 2, 0]


def test_at_the_end_nothing_waits_however_soon_it_comes(job):
    job.open()
    job.store().store_reliably(numbered(1, 2))
    ask(job.reader, now=2_000_000, rows=1)
    job.receiver.over.set()
    ask(job.reader, now=2_000_001)
    for _ in attempts():
        if isinstance(ask(job.reader, now=2_000_002), Ended):
            break

    assert [fact.rows for fact in job.facts if isinstance(fact, SourceLag)] == [0, 1, 0]


def test_a_source_without_rows_asks_to_be_polled_soon(job):
    job.open()
    job.store()

    assert ask(job.reader, now=50) == NoData(wake_at=MonotonicTime(20_050))


# ----------------------------------------------------------------------------------------------------- changed columns


def test_rows_from_before_a_column_was_added_have_none_of_it(job):
    job.open(schema=StructType().add("id", LongType()))
    job.store().store_reliably([(1,)])
    job.reader.close()

    assert read(job.open()) == [(1, None)]


def test_rows_that_cannot_become_the_declared_columns_are_refused(job):
    job.open()
    job.store().store_reliably([(1, "one")])
    job.reader.close()

    with pytest.raises(StateIncompatible, match="cannot become"):
        ask(job.open(schema=StructType().add("name", LongType())))


# ---------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_interval_ms": -1}, "block_interval_ms=-1"),
        ({"block_bytes": 0}, "block_bytes=0"),
        ({"max_backlog_rows": 0}, "max_backlog_rows=0"),
        ({"max_backlog_bytes": 1.5}, "max_backlog_bytes=1.5"),
    ],
)
def test_an_impossible_argument_is_refused(options, message):
    with pytest.raises(GraphError, match=message):
        Source(Given(), schema=SCHEMA, **options)


def test_a_class_is_no_receiver():
    with pytest.raises(GraphError, match="Give an instance"):
        Source(Given, schema=SCHEMA)


def test_without_a_job_nothing_can_be_received():
    with pytest.raises(GraphError, match="state directory"):
        Source(Given(), schema=SCHEMA).open(SourceContext(uid="in", spark=None), None)


# ------------------------------------------------------------------------------------------------------- without a log


def test_without_a_log_rows_lie_in_memory_and_a_restart_loses_those_that_were_not_read(job):
    job.open(durable=False)
    store = job.store()
    store.store(numbered(1))
    while not (found := read(job.reader)):
        pass
    position = job.reader.position()
    store.store(numbered(2))
    job.reader.close()

    assert found == numbered(1)
    assert job.blocks == []
    job.open(position, durable=False)
    job.store().store(numbered(3))
    while not (found := job.early + read(job.reader)):
        pass
    assert found == numbered(3)


def test_without_a_log_nothing_can_be_stored_reliably(job):
    job.open(durable=False)

    with pytest.raises(GraphError, match="keeps no log"):
        job.store().store_reliably(numbered(1))


def test_a_pipeline_that_asks_for_more_than_a_source_without_a_log_can_do_is_refused():
    for source in (Source(Given(), schema="n LONG", durable=False), ps.socket.Source("localhost", 1, durable=False)):
        p = ps.Pipeline("demo")
        p.read("in", source).write("out", ps.memory.Sink(), guarantee="at-least-once")

        with pytest.raises(GraphError, match="which can be read at-most-once only"):
            validate(p.graph())


def test_a_source_does_not_change_between_a_log_and_none_under_one_uid(job):
    job.open(durable=False)
    unlogged = job.reader.position()
    job.open()
    logged = job.reader.position()

    with pytest.raises(StateIncompatible, match="Give it a uid of its own"):
        job.open(logged, durable=False)
    with pytest.raises(StateIncompatible, match="Give it a uid"):
        job.open(unlogged)
