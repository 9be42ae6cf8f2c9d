"""The scenarios of a Kinesis checkpointer in Spark (KinesisCheckpointer.scala and its suites), by number.

Numbers that are missing are rows of the mission (test_kinesis_checkpointer.py) or belong to the reader of shards. A
number with "port" behaves otherwise here, and its test says how.
"""

from __future__ import annotations

import threading

import pytest

from core.checkpointer_kit import Bench, Patience, Progress, Store, TickClock
from penstock.connectors.kinesis.checkpointer import KinesisCheckpointer, retry_random
from penstock.connectors.kinesis.positions import After, Finished
from penstock.errors import (
    GraphError,
    LeaseLost,
    LeaseTableInvalid,
    LeaseTableUnavailable,
    LeaseThrottled,
)

MINUTE = 60_000_000


@pytest.fixture
def bench():
    made = []

    def make(**at):
        made.append(Bench(**at))
        return made[-1]

    yield make
    for each in made:
        each.checkpointer.shutdown()


# ---- A. the timer, and what is written -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wall", "first"),
    [("00:00:00", MINUTE), ("00:00:59", MINUTE // 60), ("00:01:00", MINUTE), ("00:00:30", MINUTE // 2)],
)
def test_1_the_first_tick_is_at_the_next_multiple_of_the_interval(wall, first):
    clock = TickClock(f"2026-01-01T{wall}Z")
    checkpointer = KinesisCheckpointer(Progress(), "60 seconds", "w", clock)
    clock.settle()
    assert clock.next_ticks() == [first]
    checkpointer.shutdown()


def test_2_to_7_what_is_written_at_a_tick(bench):
    kinesis = bench(a=5, b=7)
    stores = [kinesis.set(shard) for shard in "ab"]
    kinesis.clock.tick("30 seconds")
    assert [store.tried for store in stores] == [[], []], "2: no tick was reached"
    kinesis.clock.tick("30 seconds")
    assert [store.calls for store in stores] == [[(5, 0)], [(7, 0)]], "3: every shard, at what is stored"
    kinesis.tick()
    assert len(stores[0].tried) == 1, "5: the same number is written once"
    kinesis.progress.at["a"] = 6
    kinesis.tick()
    assert stores[0].calls == [(5, 0), (6, 0)], "6: a higher one again"
    kinesis.progress.at["a"] = 4
    kinesis.tick()
    assert len(stores[0].tried) == 2, "7: a lower one never"


def test_4_ticks_that_were_missed_run_back_to_back(bench):
    kinesis = bench()

    class Serves(Progress):
        def stored(self, shard):
            self.asked += 1
            return After((1, 1, 2, 2, 2)[self.asked - 1])

    kinesis.checkpointer._receiver = receiver = Serves()
    store = kinesis.set("a")
    kinesis.tick(times=5)
    assert receiver.asked == 5
    assert store.calls == [(1, 0), (2, 0)], "both, each once"


def test_8_port_numbers_of_different_length_are_compared_as_integers(bench):
    kinesis = bench(a=99)
    store = kinesis.set("a")
    kinesis.tick()
    kinesis.progress.at["a"] = 100
    kinesis.tick()
    assert store.calls == [(99, 0), (100, 0)]


def test_9_nothing_stored_is_no_call(bench):
    kinesis = bench(a=None)
    store = kinesis.set("a")
    kinesis.tick(times=3)
    assert store.tried == []


def test_10_the_last_batch_is_checkpointed_though_no_data_follows(bench):
    kinesis = bench(a=5)
    store = kinesis.set("a")  # set once, when the batch came
    kinesis.tick(times=2)
    kinesis.progress.at["a"] = 6  # stored later, and nothing is received any more
    kinesis.tick()
    assert store.calls == [(5, 0), (6, 0)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("fatal", [KeyboardInterrupt, MemoryError, SystemExit])
def test_14_and_15_a_fatal_error_is_not_swallowed_and_any_other_is(bench, fatal):
    kinesis = bench(a=1)
    store = kinesis.set("a", ValueError(), fatal())
    kinesis.tick()
    thread = kinesis.checkpointer._timer._thread
    assert thread.is_alive()
    kinesis.clock.advance("60 seconds")
    thread.join(Patience.seconds)
    assert not thread.is_alive()
    assert store.calls == []


def test_16_ticks_queue_behind_a_slow_write_and_never_overlap(bench):
    kinesis = bench()
    entered, leave = threading.Event(), threading.Event()
    at_once = []

    class Slow(Store):
        def checkpoint(self, position=None):
            at_once.append(1)
            entered.set()
            assert leave.wait(Patience.seconds)
            assert len(at_once) == 1
            super().checkpoint(position)
            at_once.pop()

    class Serves(Progress):
        def stored(self, shard):
            self.asked += 1
            return After(self.asked)

    kinesis.checkpointer._receiver = Serves()
    slow = Slow()
    kinesis.checkpointer.set_checkpointer("a", slow)
    kinesis.clock.advance("60 seconds")
    assert entered.wait(Patience.seconds)
    kinesis.clock.advance("120 seconds")
    leave.set()
    kinesis.clock.settle()
    assert slow.calls == [(1, 0), (2, 0), (3, 0)]


# ---- B. retries ------------------------------------------------------------------------------------------------------

THROTTLED, AWAY, LOST = LeaseThrottled("slow"), LeaseTableUnavailable("no answer"), LeaseLost("taken")
LAST = LeaseThrottled("the last one")


@pytest.mark.parametrize(
    ("number", "failures", "calls", "raised"),
    [
        (18, [], 1, None),
        (19, [THROTTLED], 2, None),
        (20, [AWAY], 2, None),
        (21, [THROTTLED, THROTTLED, THROTTLED, LAST], 4, LAST),
        (22, [LOST], 1, LOST),
        (23, [LeaseTableInvalid("no table")], 1, LeaseTableInvalid),
        (24, [ValueError("another one")], 1, ValueError),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_18_to_24_retries(number, failures, calls, raised):
    store, pauses = Store(*failures), []
    if raised is None:
        retry_random(store.checkpoint, pause=pauses.append)
    else:
        with pytest.raises(raised if isinstance(raised, type) else type(raised)) as caught:
            retry_random(store.checkpoint, pause=pauses.append)
        assert caught.value is failures[-1]
    assert len(store.tried) == calls
    assert len(pauses) == calls - 1
    assert all(0 <= pause < 0.1 for pause in pauses)


def test_25_a_last_attempt_is_not_retried():
    store = Store(THROTTLED)
    with pytest.raises(LeaseThrottled):
        retry_random(store.checkpoint, attempts=1, pause=pytest.fail)
    assert store.tried == [None]


def test_22_a_lost_lease_is_a_warning_in_a_tick(bench, caplog):
    kinesis = bench(a=1)
    store = kinesis.set("a", LOST)
    kinesis.tick()
    assert (store.tried, kinesis.pauses) == ([After(1)], [])
    assert [record.levelname for record in caplog.records] == ["WARNING"]


# ---- C. removal, shard end, loss of a lease --------------------------------------------------------------------------


def test_27_port_a_shard_of_which_nothing_was_stored_ends_once_it_is_known_to_be_read(bench):
    kinesis = bench()
    store = Store()
    assert kinesis.checkpointer.remove_checkpointer("a", store) is False
    kinesis.tick()
    assert store.tried == []
    kinesis.progress.at["a"] = Finished()
    kinesis.tick()
    assert store.calls == ["END"]


def test_29_a_final_checkpoint_that_fails_after_retries_is_logged_and_raised(bench, caplog):
    kinesis = bench(a=Finished())
    store = Store(THROTTLED, THROTTLED, THROTTLED, LAST)
    with pytest.raises(LeaseThrottled, match="the last one"):
        kinesis.checkpointer.remove_checkpointer("a", store)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_31_an_unknown_shard_is_removed_without_an_error(bench):
    assert bench().checkpointer.remove_checkpointer("no such shard", None) is False


def test_32_later_ticks_never_touch_a_removed_shard(bench):
    kinesis = bench(a=1)
    store = kinesis.set("a")
    kinesis.checkpointer.remove_checkpointer("a", None)
    kinesis.tick(times=3)
    assert (store.tried, kinesis.progress.asked) == ([], 0)


def test_38_port_a_shard_whose_lease_is_lost_is_removed_by_its_store(bench):
    kinesis = bench(a=1)

    class Leased(Store):
        def checkpoint(self, position=None):
            try:
                super().checkpoint(position)
            except LeaseLost:
                kinesis.checkpointer.remove_checkpointer("a", None)
                raise

    store = Leased(LOST)
    kinesis.checkpointer.set_checkpointer("a", store)
    kinesis.tick(times=3)
    assert store.tried == [After(1)], "it does not fail at each tick"


def test_39_a_replaced_checkpointer_does_not_write_an_equal_number_again_unless_the_shard_was_removed(bench):
    kinesis = bench(a=1)
    kinesis.set("a")
    kinesis.tick()
    replaced = kinesis.set("a")
    kinesis.tick()
    assert replaced.tried == []
    kinesis.checkpointer.remove_checkpointer("a", None)
    again = kinesis.set("a")
    kinesis.tick()
    assert again.calls == [(1, 0)], "port (K9): it was lost, and another worker may have written since"


def test_40_port_the_end_waits_for_the_last_record_to_be_stored_also_over_a_new_lease(bench):
    kinesis = bench(a=1)
    ending = Store()
    kinesis.checkpointer.remove_checkpointer("a", ending)
    store = kinesis.set("a")  # the shard is read again, so it is not about to end
    kinesis.tick()
    kinesis.progress.at["a"] = Finished()
    kinesis.tick()
    assert (ending.tried, store.calls) == ([], [(1, 0)])


# ---- D. shutdown -----------------------------------------------------------------------------------------------------


def test_41_port_the_last_pass_is_at_once(bench):
    kinesis = bench(a=1)
    store = kinesis.set("a")
    kinesis.checkpointer.shutdown()  # the clock does not move
    assert store.calls == [(1, 0)]


def test_43_and_46_a_second_shutdown_does_nothing(bench):
    kinesis = bench(a=1)
    store = kinesis.set("a")
    kinesis.checkpointer.shutdown()
    kinesis.progress.at["a"] = 2
    kinesis.checkpointer.set_checkpointer("a", store)
    kinesis.checkpointer.shutdown()
    assert store.calls == [(1, 0)]


def test_44_no_tick_after_a_shutdown(bench):
    kinesis = bench(a=1)
    kinesis.checkpointer.shutdown()
    store = kinesis.set("a")
    kinesis.clock.advance("600 seconds")
    assert store.tried == []


def test_a_shard_that_could_not_end_is_told_at_the_shutdown(bench, caplog):
    kinesis = bench(a=1)
    store = Store()
    kinesis.checkpointer.remove_checkpointer("a", store)
    kinesis.checkpointer.shutdown()
    assert store.tried == []
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "worker w1 leaves shard a open: records of it are not stored"
    ]


@pytest.mark.parametrize("interval", ["0 seconds", "10 microseconds", "soon"])
def test_an_interval_that_is_none_is_refused(interval):
    with pytest.raises(GraphError, match="interval"):
        KinesisCheckpointer(Progress(), interval, "w", TickClock())


# ---- E. the receiver -------------------------------------------------------------------------------------------------


def test_57_port_a_position_that_was_not_stored_is_never_written(bench):
    kinesis = bench(a=1)
    store = kinesis.set("a")
    kinesis.tick()
    kinesis.progress.at["a"] = 1  # the store of records 2 to 9 failed: the receiver's position stays
    kinesis.tick()
    assert store.calls == [(1, 0)]


def test_60_port_a_checkpoint_keeps_the_sub_sequence_number(bench):
    kinesis = bench(a=After(5, 2))
    store = kinesis.set("a")
    kinesis.tick()
    kinesis.progress.at["a"] = After(5, 3)
    kinesis.tick()
    assert store.calls == [(5, 2), (5, 3)]
