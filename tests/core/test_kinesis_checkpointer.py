"""What the mission says of a Kinesis checkpointer: one test for each of the rows K1 to K14, through the public class.

Each row has planted deviations, and its own test finds them.
"""

from __future__ import annotations

import inspect
import logging
import threading

import pytest

from core.checkpointer_kit import Bench, Patience, Progress, Store, TickClock
from penstock.connectors.kinesis.checkpointer import KinesisCheckpointer
from penstock.connectors.kinesis.positions import After, AtHorizon, AtTime, Finished
from penstock.errors import LeaseLost, LeaseTableInvalid, LeaseTableUnavailable, LeaseThrottled, PenstockError
from planted import of_kinesis  # noqa: F401
from planted.bug import BUGS, planted


@pytest.fixture
def bench():
    made = []

    def make(**at):
        made.append(Bench(**at))
        return made[-1]

    yield make
    for each in made:
        each.checkpointer.shutdown()


def threads(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


@pytest.mark.mission("K1")
def test_K1(bench):
    clock = TickClock("2026-01-01T00:00:20Z")
    checkpointer = KinesisCheckpointer(Progress(a=7), "60 seconds", "host:K1", clock)
    (thread,) = threads("Kinesis Checkpointer - Worker host:K1")
    assert thread.daemon, "it keeps no process alive"
    store = Store()
    checkpointer.set_checkpointer("a", store)
    clock.settle()
    assert clock.next_ticks() == [40_000_000], "the first tick is at the next multiple of the interval"
    clock.tick("39 seconds")
    assert store.calls == []
    clock.tick("1 second")
    assert store.calls == [(7, 0)], "only the injected clock has moved"
    checkpointer.shutdown()
    assert not thread.is_alive()


@pytest.mark.mission("K2")
def test_K2(bench):
    kinesis = bench(a=1)
    first = kinesis.set("a")
    kinesis.tick()
    second = kinesis.set("a")
    kinesis.progress.at["a"] = 2
    kinesis.tick()
    assert (first.calls, second.calls) == ([(1, 0)], [(2, 0)])


@pytest.mark.mission("K3")
def test_K3(bench):
    kinesis = bench(a=1)
    store = kinesis.set("a", None, LeaseLost("taken"))
    kinesis.tick()
    kinesis.progress.at["a"] = 2
    kinesis.tick()  # fails
    kinesis.tick()
    kinesis.progress.at["a"] = After(2, 1)
    kinesis.tick()
    assert store.tried == [After(1), After(2), After(2), After(2, 1)], "only a success moved the last one"
    assert store.calls == [(1, 0), (2, 0), (2, 1)]


@pytest.mark.mission("K4")
def test_K4(bench):
    kinesis = bench()
    store = kinesis.set("a")
    for position in (None, AtHorizon(), AtTime(5), 5, 5, 4, After(4, 9)):
        kinesis.progress.at["a"] = position
        kinesis.tick()
    assert store.tried == [After(5)]
    assert kinesis.progress.asked == 7, "each tick asked what is stored"


@pytest.mark.mission("K5")
def test_K5(bench, caplog):
    caplog.set_level(logging.DEBUG, "penstock")
    kinesis = bench(a=1, b=1)
    kinesis.checkpointer.set_checkpointer("a", None)
    store = kinesis.set("b")
    kinesis.tick()
    assert store.calls == [(1, 0)]
    told = [record for record in caplog.records if "skips shard a" in record.message]
    assert [record.levelname for record in told] == ["DEBUG"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.mission("K6")
def test_K6(bench, caplog):
    kinesis = bench(a=1, b=1)
    failing, sound = kinesis.set("a", LeaseTableInvalid("no table")), kinesis.set("b")
    kinesis.tick()
    assert sound.calls == [(1, 0)], "the other shard is done in the same tick"
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (warning.levelname, warning.message) == ("WARNING", "worker w1 could not checkpoint shard a: no table")
    kinesis.progress.at["a"] = 3
    kinesis.tick()
    assert failing.tried == [After(1), After(3)], "the next tick tries the position that the shard then has"
    assert failing.calls == [(3, 0)]


@pytest.mark.mission("K7")
def test_K7(bench):
    kinesis = bench(a=RuntimeError("a receiver that fails"), b=1)
    store, sound = kinesis.set("a", ValueError("a store that fails")), kinesis.set("b")
    kinesis.tick()
    for position in (1, 2):
        kinesis.progress.at["a"] = position
        kinesis.tick()
    assert (store.tried, store.calls, sound.calls) == ([After(1), After(2)], [(2, 0)], [(1, 0)])


@pytest.mark.mission("K8")
def test_K8(bench, caplog):
    kinesis = bench(a=5, b=5)
    kinesis.set("a")
    kinesis.tick()
    store = Store(LeaseLost("taken"))
    assert kinesis.checkpointer.remove_checkpointer("a", store) is False
    kinesis.progress.at["a"] = 6
    kinesis.tick()
    assert store.tried == [], "the end is not written while records of the shard are in no completed checkpoint"
    kinesis.progress.at["a"] = Finished()
    kinesis.tick()
    assert (store.tried, store.calls) == ([None], []), "the end has no number"
    kinesis.tick()
    assert store.calls == ["END"], "a tick whose end failed is repeated"
    kinesis.tick()
    assert store.tried == [None, None]

    order, failure = [], LeaseTableInvalid("no table")

    class Untracked(Store):
        def checkpoint(self, position=None):
            kinesis.tick()  # beside it
            order.append(position)
            if len(order) == 1:
                raise failure

    tracked = kinesis.set("b")
    kinesis.progress.at["b"] = Finished()
    caplog.clear()
    with pytest.raises(LeaseTableInvalid, match="no table"):
        kinesis.checkpointer.remove_checkpointer("b", Untracked())
    assert [record.levelname for record in caplog.records] == ["ERROR"], "a failed end is an error, and is raised"
    kinesis.progress.at["b"] = 9
    kinesis.tick()
    assert tracked.tried == [], "the shard was untracked first"
    kinesis.progress.at["b"] = Finished()
    assert kinesis.checkpointer.remove_checkpointer("b", Untracked()) is True
    assert order == [None, None]


@pytest.mark.mission("K9")
def test_K9(bench):
    kinesis = bench(a=5)
    store = kinesis.set("a")
    kinesis.tick()
    assert kinesis.checkpointer.remove_checkpointer("a", None) is False
    kinesis.progress.at["a"] = 6
    kinesis.tick()
    assert store.calls == [(5, 0)], "nothing is written for a lease that is lost"
    again = kinesis.set("a")
    kinesis.progress.at["a"] = 3
    kinesis.tick()
    assert again.calls == [(3, 0)], "a shard that comes back is checkpointed from where it then is"

    ending = Store()
    kinesis.checkpointer.remove_checkpointer("a", ending)
    kinesis.checkpointer.remove_checkpointer("a", None)
    kinesis.progress.at["a"] = Finished()
    kinesis.tick()
    assert ending.tried == [], "the end that waited is given up with the lease"


@pytest.mark.mission("K10")
def test_K10(bench):
    kinesis = bench(a=1)
    throttled, away = LeaseThrottled("slow down"), LeaseTableUnavailable("no answer")
    store = kinesis.set("a", throttled, away, throttled)
    kinesis.tick()
    assert store.tried == [After(1)] * 4
    assert store.calls == [(1, 0)]
    assert len(kinesis.pauses) == 3
    assert all(0 <= pause < 0.1 for pause in kinesis.pauses)

    kinesis.progress.at["a"] = Finished()
    end = Store(throttled, throttled, throttled, LeaseThrottled("the last one"))
    with pytest.raises(LeaseThrottled, match="the last one"):
        kinesis.checkpointer.remove_checkpointer("a", end)
    assert end.tried == [None] * 4
    for error in (LeaseLost("taken"), LeaseTableInvalid("no table"), ValueError("another one")):
        end = Store(error)
        with pytest.raises(type(error)):
            kinesis.checkpointer.remove_checkpointer("a", end)
        assert end.tried == [None], f"{error!r} is not retried"
    assert len(kinesis.pauses) == 6


@pytest.mark.mission("K11")
def test_K11(bench):
    kinesis = bench(a=1, b=1)
    entered, leave = threading.Event(), threading.Event()
    written = []

    class Slow(Store):
        def checkpoint(self, position=None):
            entered.set()
            assert leave.wait(Patience.seconds)
            written.append(position)

    kinesis.checkpointer.set_checkpointer("a", Slow())
    other = kinesis.set("b")
    kinesis.clock.advance("60 seconds")
    assert entered.wait(Patience.seconds)
    removed = []

    def remove(shard):
        kinesis.checkpointer.remove_checkpointer(shard, None)
        removed.append(list(written))

    removing = threading.Thread(target=remove, args=("a",))
    removing.start()
    removing.join(0.05)
    assert removed == [], "removal waits for the tick that is writing"
    leave.set()
    removing.join(Patience.seconds)
    assert removed == [[After(1)]]
    kinesis.clock.settle()
    kinesis.progress.at.update(a=2, b=2)
    kinesis.tick()
    assert (written, other.calls) == ([After(1)], [(1, 0), (2, 0)])

    class Removes(Store):
        def checkpoint(self, position=None):
            super().checkpoint(position)
            for shard in ("c", "d"):
                kinesis.checkpointer.remove_checkpointer(shard, None)

    removing, late = Removes(), Store()
    kinesis.checkpointer.set_checkpointer("c", removing)
    kinesis.checkpointer.set_checkpointer("d", late)
    kinesis.progress.at.update(c=1, d=1)
    kinesis.tick()
    assert (removing.tried, late.tried) == ([After(1)], []), "a shard that is removed within a pass is left out"
    again = kinesis.set("c")
    kinesis.tick()
    assert again.calls == [(1, 0)]


@pytest.mark.mission("K12")
def test_K12(bench):
    kinesis = bench(a=1, b=1)
    entered, leave = threading.Event(), threading.Event()

    class Slow(Store):
        def checkpoint(self, position=None):
            entered.set()
            assert leave.wait(Patience.seconds)
            super().checkpoint(position)

    slow, ending = Slow(), Store()
    kinesis.checkpointer.remove_checkpointer("c", ending)
    kinesis.checkpointer.set_checkpointer("a", slow)
    kinesis.clock.advance("60 seconds")
    assert entered.wait(Patience.seconds)
    store = kinesis.set("b")
    shutting = threading.Thread(target=kinesis.checkpointer.shutdown)
    shutting.start()
    shutting.join(0.05)
    assert shutting.is_alive(), "the write under way is not interrupted"
    kinesis.progress.at.update(a=2, b=2, c=Finished())
    leave.set()
    shutting.join(Patience.seconds)
    assert slow.calls == [(1, 0), (2, 0)], "one last pass, over all shards"
    assert not kinesis.checkpointer._timer._thread.is_alive()
    assert store.calls[-1:] == [(2, 0)]
    assert ending.calls == ["END"]
    assert kinesis.checkpointer._checkpointers == kinesis.checkpointer._last == kinesis.checkpointer._ends == {}
    kinesis.progress.at.update(a=3, b=3)
    kinesis.clock.advance("600 seconds")
    kinesis.checkpointer.shutdown()
    assert slow.calls == [(1, 0), (2, 0)], "no tick after it, and no second last pass"


@pytest.mark.mission("K13")
def test_K13(bench):
    kinesis = bench(a=9)
    store = kinesis.set("a")
    for position in (9, 10, 9, After(10, 9), After(10, 10), 99, 100, 99):
        kinesis.progress.at["a"] = position
        kinesis.tick()
    assert store.calls == [(9, 0), (10, 0), (10, 9), (10, 10), (99, 0), (100, 0)]


@pytest.mark.mission("K14")
def test_K14(bench):
    kinesis = bench(a=3)
    received = {"a": 9}  # of which 3 are stored
    store = kinesis.set("a")
    kinesis.tick()
    assert store.calls == [(3, 0)], "what is received and not stored would be lost"
    kinesis.progress.at["a"] = received["a"]
    kinesis.tick()
    assert store.calls == [(3, 0), (9, 0)]


ROWS = [name for name, bug in BUGS.items() if bug.core.startswith("core/test_kinesis_checkpointer.py::")]


@pytest.mark.parametrize("name", ROWS)
def test_a_planted_deviation_is_found_by_the_test_of_its_row(name, bench, caplog, monkeypatch):
    monkeypatch.setattr(Patience, "seconds", 0.3)  # for threads that do not come to rest
    test = globals()[BUGS[name].core.split("::")[1]]
    fixtures = {"bench": bench, "caplog": caplog}
    with planted(name), pytest.raises((AssertionError, PenstockError, pytest.fail.Exception)):
        test(*(fixtures[each] for each in inspect.signature(test).parameters))
