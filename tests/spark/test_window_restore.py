"""Restored rows come into memory beside the data, in parts: when, for whom, and what a crash or a snapshot finds."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from penstock.spark import prepared_plans
from penstock.spark.kept_plans import KeptPlans
from penstock.spark.plans import FrameObservation, PlanObserver
from penstock.state import layers, parquet, restore
from penstock.state.layers import STATS
from window_harness import Rig, deliver, persistent

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64())])
USERS = tuple(f"u{number}" for number in range(40))


def step() -> WindowAggregate:
    aggregates = (agg.sum("x").alias("x"), agg.count().alias("n"))
    return WindowAggregate(keys=(("user", "user"),), time="at", window=tumbling("10 seconds"), aggregates=aggregates)


def rows(second: int, users: tuple[str, ...] = USERS) -> list[dict[str, object]]:
    return [{"user": user, "at": second * SECOND, "x": second} for user in users]


@pytest.fixture
def written(spark, tmp_path, monkeypatch):
    """A step with three layers in several slices, windows that end after 10, 20 and 100 seconds."""
    monkeypatch.setattr(parquet, "ROWS_A_TASK", 10)
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    for second in (1, 15, 95):
        rig.process(rows(second))
        rig.checkpoint()
    return rig


def sums(rig: Rig) -> dict[int, int]:
    """By the second in which a window ends: the sum over all users."""
    found: dict[int, int] = {}
    for _user, _start, end, x, _n in rig.take():
        found[int(end.timestamp())] = found.get(int(end.timestamp()), 0) + x  # type: ignore[attr-defined]
    return found


def test_a_batch_and_a_window_without_restored_rows_wait_for_none(written):
    rig = written.again(written.checkpoint())
    rig.process(rows(25))
    assert rig.operator._stack.loading == {ref.name for ref in written.operator._durable.refs}
    assert rig.operator._stack.height == 2
    rig.advance(10 * SECOND)
    assert sums(rig) == {10: 40}
    assert not rig.operator._stack.loading, "that one had rows"
    rig.advance(MAX_WATERMARK)
    assert sums(rig) == {20: 600, 30: 1_000, 100: 3_800}
    rig.operator.close()


@pytest.mark.parametrize("partitions", [1, 2, 3, 4])
@pytest.mark.parametrize("most", [1_000_000, 10])
def test_in_whatever_parts_it_comes_it_is_the_same(written, monkeypatch, partitions, most):
    monkeypatch.setattr(restore, "ROWS_A_PART", most)
    rig = written.again(written.checkpoint(), partitions=partitions)
    rig.process(rows(15, USERS[:7]))
    pieces = 0
    while rig.operator._stack.loading:
        rig.operator._stack.load_part()
        pieces += 1
    assert pieces == {1_000_000: {1: 1, 2: 2, 3: 1, 4: 4}, 10: {1: 8, 2: 8, 3: 1, 4: 8}}[most][partitions]
    rig.advance(MAX_WATERMARK)
    assert sums(rig) == {10: 40, 20: 705, 100: 3_800}
    rig.operator.close()


def test_where_a_task_may_run_twice_its_rows_are_counted(written, monkeypatch):
    nothing = {"rows": 0, "first": None, "last": None}  # observes a task that finds its rows kept by an earlier attempt
    real = PlanObserver._read

    def read(self, observation, spec):
        return nothing if spec.figures == STATS else real(self, observation, spec)

    for module in (layers, prepared_plans):
        monkeypatch.setattr(module, "may_run_twice", lambda _session: True)
    monkeypatch.setattr(FrameObservation, "read", lambda _self, **_: nothing)
    monkeypatch.setattr(PlanObserver, "_read", read)
    monkeypatch.setattr(KeptPlans, "kept", lambda *_: None)
    rig = written.again(written.checkpoint())
    rig.process(rows(15))
    rig.advance(MAX_WATERMARK)
    assert sums(rig) == {10: 40, 20: 1_200, 100: 3_800}
    rig.operator.close()


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_a_part_of_which_no_file_has_a_row_is_empty_and_in_its_place(spark, tmp_path, monkeypatch, partitions):
    monkeypatch.setattr(parquet, "MIN_ROWS_AHEAD", 10)
    monkeypatch.setattr(parquet, "MIN_ROWS_A_FILE", 10)
    rig = Rig(spark, step(), SCHEMA, tmp_path, partitions=partitions)
    found = spark.createDataFrame([(user,) for user in USERS], "user STRING").where("pmod(hash(user), 4) = 3")
    users = tuple(row.user for row in found.collect())
    for second in range(0, 100, 10):
        rig.process(rows(second, users))
    handle = rig.checkpoint()
    (layer,) = handle.layers
    assert {file.path.split("/")[-2] for file in layer.files} < {f"{number:04d}" for number in range(8)}
    again = rig.again(handle)
    again.process(rows(15))
    rig.operator._compact(rig.operator._due)
    again.advance(MAX_WATERMARK)
    expected = {second + 10: second * len(users) for second in range(0, 100, 10)}
    assert sums(again) == expected | {20: expected[20] + 15 * len(USERS)}
    again.operator.close()
    rig.operator.close()


def test_what_it_is_merged_with_needs_no_exchange(written):
    rig = written.again(written.checkpoint(), late_read=False)
    rig.process(rows(15))
    rig.advance(MAX_WATERMARK)
    deliver(rig.spark, rig)
    rig.operator.close()


def test_a_checkpoint_taken_meanwhile_is_whole_and_keeps_what_is_being_read(written):
    rig = written.again(written.checkpoint())
    rig.operator._stack.load_part()
    rig.process(rows(16))
    during = rig.checkpoint()
    assert len(during.layers) == 4
    assert rig.operator._durable.plan() is None
    rig.operator._stack.close_windows(20 * SECOND)
    rig.process(rows(17))
    names = [ref.name for ref in rig.checkpoint().layers]
    assert names == ["g1-000001", "g1-000002", "g1-000003"], "two of them closed, but they are being read"
    rig.operator.maintain()()
    rig.process(rows(26))
    assert [ref.name for ref in rig.checkpoint().layers] == ["g1-000003", "g2-000002"]
    again = rig.again(during)
    again.advance(MAX_WATERMARK)
    assert sums(again) == {10: 40, 20: 600 + 640, 100: 3_800}
    again.operator.close()


def test_rows_that_all_end_before_they_are_needed_are_never_read(written):
    before = persistent(written.spark)
    rig = written.again(written.checkpoint())
    rig.operator._stack.load_part()
    rig.operator._stack.close_windows(100 * SECOND)
    assert (rig.operator._stack.loading, rig.operator._stack.height) == (frozenset(), 0)
    assert persistent(rig.spark) <= before
    rig.operator.close()


@pytest.mark.mission("L14")
def test_a_crash_between_two_parts_leaves_nothing_and_the_next_start_has_all(written):
    handle = written.checkpoint()
    before = persistent(written.spark)

    def crash(place: str) -> None:
        if place == "state.part.loaded":
            raise RuntimeError(place)

    rig = written.again(handle, failpoint=crash)
    with pytest.raises(RuntimeError, match=r"state\.part\.loaded"):
        rig.operator.maintain()()
    with pytest.raises(RuntimeError, match=r"state\.part\.loaded"):
        rig.advance(10 * SECOND)
    again = rig.again(handle)
    assert persistent(rig.spark) <= before
    again.advance(MAX_WATERMARK)
    assert sums(again) == {10: 40, 20: 600, 100: 3_800}
    again.operator.close()


def test_the_data_and_the_background_load_side_by_side_and_a_close_meanwhile_frees_all(written):
    handle, before = written.checkpoint(), persistent(written.spark)
    inside, go_on = threading.Event(), threading.Event()

    def hold(place: str) -> None:
        if place == "state.part.loaded" and threading.current_thread() is beside:
            inside.set()
            go_on.wait()

    rig = written.again(handle, failpoint=hold)
    work = rig.operator.maintain()
    beside = threading.Thread(target=work)
    beside.start()
    inside.wait()
    rig.operator._stack._loader.step()
    assert not rig.operator._stack._loader.step(), "both parts are taken"
    rig.operator.close()
    layers, lease = rig.operator._stack.lease_due(MIN_WATERMARK, MAX_WATERMARK)
    assert layers == ()
    lease.release()
    go_on.set()
    beside.join()
    assert persistent(rig.spark) <= before
