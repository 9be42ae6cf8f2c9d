"""Watermark alignment: the slowest is never paused, the others stay within their drift and one batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import MonotonicTime
from penstock.graph.nodes import CallSite, WithWatermark
from penstock.graph.queries import AlignedStream, AlignmentGroup
from penstock.runtime.watermark_alignment import BATCHES_WITHOUT_TIME, NO_PAUSE, ReadPause, WatermarkAlignment

DRIFT = 60


def mark(id: int = 1, *, drift: int | None = DRIFT, idle_after: int | None = None) -> WithWatermark:
    return WithWatermark(
        id=id,
        origin=CallSite("t.py", 1),
        inputs=(),
        column="at",
        delay=0,
        idle_after=idle_after,
        max_ahead=None,
        max_drift=drift,
    )


def stream(sources: str, **more: int | None) -> AlignedStream:
    return AlignedStream(mark(**more), frozenset(sources))  # type: ignore[arg-type]


@dataclass
class Bench:
    """Tells a group what sources read; the numbers of batches are kept here."""

    group: AlignmentGroup
    now: int = 0
    sent: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.alignment = WatermarkAlignment(self.group, now=MonotonicTime(0))

    def send(self, source: str) -> int:
        number = self.sent[source] = self.sent.get(source, 0) + 1
        self.alignment.sent(source, number, MonotonicTime(self.now))
        return number

    def read(self, source: str, behind: str = "", /, mark: int = 1, **times: int | None) -> None:
        """A batch is sent, run and told; ``all`` is the name of rows that do not say their partition."""
        named = {"" if name == "all" else name: time for name, time in times.items()}
        self.alignment.observed(mark, source, self.send(source), named, behind=behind.split())

    def hold(self, source: str, now: int | None = None) -> ReadPause:
        self.now = self.now if now is None else now
        return self.alignment.pause(source, MonotonicTime(self.now))

    def held(self, source: str) -> str:
        """The partitions that are held, or ``all``, and for whom."""
        hold = self.hold(source)
        what = "all" if hold.everything else " ".join(sorted(hold.partitions))
        return f"{what} for {hold.by}" if hold.by else what


def two(**more: int | None) -> Bench:
    return Bench((stream("ab", **more),))


def test_the_source_that_is_too_far_ahead_is_not_read_until_the_other_came_after() -> None:
    bench = two()
    bench.read("a", all=100)
    bench.read("b", all=161)
    assert (bench.held("a"), bench.held("b")) == ("", "all for a")
    assert bench.hold("b").ahead == ("b",)
    bench.read("a", all=101)
    assert bench.held("b") == "", "ahead by the drift is still near enough"
    bench.read("a", all=500)
    assert (bench.held("a"), bench.held("b")) == ("all for b", "")


def test_partitions_ahead_are_left_out_and_their_source_is_read_on() -> None:
    bench = Bench((stream("a"),))
    bench.read("a", p=10, q=100, r=None)
    assert bench.held("a") == "q for a/p"
    assert bench.hold("a").ahead == ("a/q",)
    bench.read("a", p=50, q=None, r=7)
    assert bench.held("a") == "q for a/r", "p is 43 ahead of r"
    bench.read("a", p=68, q=None, r=7)
    assert bench.held("a") == "p q for a/r"
    bench.read("a", p=None, q=None, r=90)
    assert bench.held("a") == ""


def test_a_source_all_of_whose_partitions_are_ahead_is_not_read_at_all() -> None:
    bench = two()
    bench.read("a", p=100, q=120)
    bench.read("b", all=30)
    assert bench.held("a") == "all for b"
    bench.read("b", all=50)
    assert bench.held("a") == "q for b"


def test_a_partition_of_which_no_event_time_is_known_is_read_and_nobody_waits_for_it() -> None:
    bench = two()
    bench.read("a", p=100, q=None)
    bench.read("b", all=30)
    assert bench.held("a") == "p for b"
    bench.read("b", all=None)
    bench.read("b", all=300)
    assert bench.held("b") == "all for a/p"


def test_a_partition_with_rows_waiting_is_waited_for_until_they_come_or_have_no_event_time() -> None:
    bench = two()
    bench.read("b", all=300)
    bench.read("a", "p q", p=100, q=None)
    assert (bench.held("a"), bench.held("b")) == ("p for a/q", "all for a/q")
    bench.read("a", "p", p=None, q=90)
    assert (bench.held("a"), bench.held("b")) == ("", "all for a/q")
    bench = Bench((stream("a"),))
    for _ in range(BATCHES_WITHOUT_TIME - 1):
        bench.read("a", "p q", p=100, q=None)
        assert bench.held("a") == "p for a/q"
    bench.read("a", "p q", p=100, q=None)
    assert bench.held("a") == ""


def test_the_only_one_waits_for_nobody() -> None:
    bench = Bench((stream("a"),))
    for time in (10, 1_000, 100_000):
        bench.read("a", all=time)
        bench.send("a")
        bench.send("a")
        assert bench.hold("a") == NO_PAUSE


def test_a_source_that_has_not_spoken_yet_is_waited_for() -> None:
    bench = two()
    assert bench.hold("a") == bench.hold("b") == NO_PAUSE
    bench.read("a", all=100)
    assert bench.held("a") == "all for b"
    number = bench.send("b")
    assert bench.held("a") == "all for b"
    assert bench.held("b") == "all", "until its first batch is told it has no other on the way"
    bench.alignment.observed(1, "b", number, {"": 90})
    assert (bench.held("a"), bench.held("b")) == ("", "")


@pytest.mark.parametrize("silence", ["nothing to read", "nothing told", "no times", "left"])
def test_one_that_has_spoken_without_a_time_holds_nobody(silence: str) -> None:
    bench = two()
    bench.read("a", all=100)
    match silence:
        case "nothing to read":
            bench.alignment.polled_nothing("b", idle=False)
        case "nothing told":
            bench.alignment.observed(1, "b", bench.send("b"), None)
        case "no times":
            bench.read("b", all=None)
        case _:
            bench.alignment.source_done("b")
    assert bench.hold("a") == NO_PAUSE


def test_one_that_does_not_speak_is_given_up_when_it_is_idle_and_waited_for_again_when_it_has_rows() -> None:
    bench = two(idle_after=100)
    bench.read("a", all=100)
    assert bench.hold("a", 99) == ReadPause(everything=True, ahead=("a",), by="b", wake_at=MonotonicTime(100))
    assert bench.hold("a", 100) == NO_PAUSE
    bench.send("b")
    assert bench.held("a") == "all for b"
    assert bench.hold("a", 500).everything, "what is on its way is no silence"


def test_nothing_to_read_while_a_batch_is_on_its_way_is_not_its_first_word() -> None:
    bench = two()
    bench.read("a", all=100)
    bench.send("b")
    bench.alignment.polled_nothing("b", idle=False)
    assert bench.held("a") == "all for b"


def test_who_brings_nothing_for_long_is_idle_and_holds_nobody_until_it_has_rows_again() -> None:
    bench = two(idle_after=100)
    bench.read("a", all=100)
    bench.read("b", all=10)
    bench.now = 99
    assert bench.hold("a") == ReadPause(everything=True, ahead=("a",), by="b", wake_at=MonotonicTime(100))
    assert bench.hold("a", 100) == NO_PAUSE
    bench.read("b", all=20)
    assert bench.held("a") == "all for b"


def test_what_is_held_is_not_idle_for_all_the_time_that_it_was() -> None:
    bench = two(idle_after=100)
    bench.read("a", all=100)
    bench.read("b", all=10)
    bench.hold("a")
    for now in range(50, 400, 50):
        bench.now = now
        bench.read("b", all=10)
        assert bench.held("a") == "all for b"
    bench.read("b", all=1_000)
    assert bench.hold("a") == NO_PAUSE
    assert bench.hold("b", 449).by == "a", "a was let go at 350"
    assert bench.hold("b", 450) == NO_PAUSE


def test_a_quiet_partition_is_idle_by_the_batches_of_the_others_unless_it_has_rows_waiting() -> None:
    bench = Bench((stream("a", idle_after=100),))
    bench.read("a", p=10, q=100)
    bench.now = 99
    bench.read("a", "", p=None, q=None, r=100)
    assert bench.held("a") == "q r for a/p"
    bench.now = 150
    bench.read("a", "p", p=None, q=None, r=None)
    assert bench.held("a") == "q r for a/p"
    bench.now = 250
    bench.read("a", "", p=None, q=None, r=None)
    assert bench.held("a") == ""


def test_partitions_that_are_gone_hold_nobody() -> None:
    bench = Bench((stream("a"),))
    bench.read("a", p=10, q=100)
    assert bench.held("a") == "q for a/p"
    bench.read("a", q=100)
    assert bench.held("a") == ""


def test_a_poll_in_vain_makes_idle_what_was_not_held_if_the_reader_says_so() -> None:
    bench = Bench((stream("a"),))
    bench.read("a", p=10, q=100)
    assert bench.held("a") == "q for a/p"
    bench.alignment.polled_nothing("a", idle=False)
    assert bench.held("a") == "q for a/p"
    bench.alignment.polled_nothing("a", idle=True)
    assert bench.held("a") == "", "p has no more in this run, or not for now"
    bench.read("a", p=11, q=None)
    assert bench.held("a") == "q for a/p"
    bench.alignment.polled_nothing("a", idle=False, ended=["p"])
    assert bench.held("a") == ""


def test_who_nears_its_limit_reads_one_batch_at_a_time() -> None:
    bench = two()
    bench.read("a", all=100)
    bench.read("b", all=100)
    number = bench.send("b")
    assert bench.held("b") == "all", "nobody knows yet how far a batch takes it"
    assert bench.hold("b").ahead == ()
    bench.alignment.observed(1, "b", number, {"": 120})
    bench.send("b")
    bench.send("b")
    assert bench.held("b") == "", "120 and two of 20 is within 160"
    bench.send("b")
    assert bench.held("b") == "all"
    assert bench.held("a") == ""


def test_the_slowest_reads_one_batch_at_a_time_where_one_takes_it_beyond_the_others() -> None:
    bench = two()
    bench.read("a", all=100)
    bench.read("a", all=200)
    bench.read("b", all=210)
    assert bench.held("a") == ""
    bench.send("a")
    assert bench.held("a") == "all"


def test_without_a_drift_of_its_own_a_stream_is_waited_for_and_waits_for_nobody() -> None:
    bench = Bench((stream("a", id=1), stream("b", id=2, drift=None)))
    bench.read("a", all=100)
    bench.read("b", mark=2, all=500)
    assert bench.held("b") == ""
    bench.read("a", all=700)
    assert bench.held("a") == "all for b"


def test_a_batch_that_comes_by_two_ways_counts_once_as_on_its_way_and_both_times_for_its_times() -> None:
    bench = two()
    bench.read("b", all=100)
    number = bench.send("a")
    bench.alignment.observed(1, "a", number, {"": 50})
    bench.alignment.observed(1, "a", number, {"": 200})
    assert bench.held("a") == "all for b"


def test_a_source_with_two_event_times_does_not_wait_for_itself() -> None:
    bench = Bench((stream("a", id=1), stream("a", id=2)))
    number = bench.send("a")
    bench.alignment.observed(1, "a", number, {"": 1_000})
    assert bench.held("a") == "all", "one batch at a time until both were told"
    bench.alignment.observed(2, "a", number, {"p": 5, "q": 100})
    assert bench.held("a") == "q for a/p"
    bench = Bench((stream("a", id=1), stream("a", id=2), stream("b", id=3)))
    number = bench.send("a")
    bench.alignment.observed(1, "a", number, {"p": 1_000})
    bench.alignment.observed(2, "a", number, {"": 5})
    bench.read("b", mark=3, all=100)
    assert (bench.held("a"), bench.held("b")) == ("", "all for a")


def test_what_one_event_time_of_a_source_has_not_told_yet_keeps_nobody_from_telling() -> None:
    bench = Bench((stream("a", id=1), stream("a", id=2), stream("b", id=3)))
    bench.read("b", mark=3, all=10)
    bench.alignment.observed(1, "a", 1, {"": 1_000})
    assert bench.held("a") == "", "its second has to come from somewhere"
    assert bench.held("b") == "all for a"


# --------------------------------------------------------------------------------------------------------- any order


@dataclass
class Feed:
    """What a partition has: event times in order, and how many were sent."""

    times: list[int]
    at: int = 0

    @property
    def has_data(self) -> bool:
        return self.at < len(self.times)


@dataclass
class World:
    """Sources with partitions, read batch by batch, each batch one row of each partition that is not held."""

    feeds: dict[str, dict[str, Feed]]
    idle_after: int | None
    now: int = 0
    on_the_way: list[tuple[str, int, dict[str, int | None]]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    told: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.alignment = WatermarkAlignment(
            (stream("".join(self.feeds), idle_after=self.idle_after),), now=MonotonicTime(0)
        )

    def poll(self, source: str) -> bool:
        """Whether it was read."""
        hold = self.alignment.pause(source, MonotonicTime(self.now))
        if hold.everything:
            return False
        open = {name: feed for name, feed in self.feeds[source].items() if not hold.leaves_out(name)}
        if not any(feed.has_data for feed in open.values()):
            if any(feed.has_data for feed in self.feeds[source].values()):
                self.alignment.polled_nothing(source, idle=True)  # as in a run that ends at what is there
            else:
                self.alignment.source_done(source)
                self.told = {key: at for key, at in self.told.items() if key[0] != source}
            return False
        times: dict[str, int | None] = dict.fromkeys(self.feeds[source])
        for name, feed in open.items():
            if feed.has_data:
                times[name] = feed.times[feed.at]
                feed.at += 1
        number = self.numbers[source] = self.numbers.get(source, 0) + 1
        self.alignment.sent(source, number, MonotonicTime(self.now))
        self.on_the_way.append((source, number, times))
        return True

    def tell(self) -> None:
        """The oldest batch on its way is told."""
        source, number, times = self.on_the_way.pop(0)
        behind = [name for name, feed in self.feeds[source].items() if feed.has_data]
        self.alignment.observed(1, source, number, times, behind=behind)
        for name, time in times.items():
            if time is not None:
                self.told[source, name] = max(self.told.get((source, name), 0), time)

    @property
    def has_data(self) -> bool:
        return any(feed.has_data for parts in self.feeds.values() for feed in parts.values())


steps = st.lists(st.integers(0, 50), max_size=8)
feeds = st.dictionaries(
    st.sampled_from("abc"), st.dictionaries(st.sampled_from(("p", "q", "r")), steps, min_size=1), min_size=1
)


def world_of(shape: dict[str, dict[str, list[int]]], start: dict[str, int], idle_after: int | None) -> World:
    def feed(source: str, jumps: list[int]) -> Feed:
        at = start.get(source, 0)
        return Feed([at := at + jump for jump in jumps])

    return World(
        {source: {name: feed(source, jumps) for name, jumps in parts.items()} for source, parts in shape.items()},
        idle_after,
    )


@given(
    feeds,
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 500)),
    st.none() | st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20))),
)
def test_in_any_order_all_is_read_and_somebody_with_data_can_always_go_on(
    shape: dict[str, dict[str, list[int]]],
    start: dict[str, int],
    idle_after: int | None,
    story: list[tuple[int, int]],
) -> None:
    world = world_of(shape, start, idle_after)
    sources = sorted(world.feeds)
    for act, wait in story:
        world.now += wait
        if act == 0 and world.on_the_way:
            world.tell()
        else:
            world.poll(sources[(act + wait) % len(sources)])
    while world.has_data or world.on_the_way:
        before = [feed.at for parts in world.feeds.values() for feed in parts.values()]
        for _ in range(3):  # a poll may only find out that what is open has no more
            for source in sources:
                world.poll(source)
        while world.on_the_way:
            world.tell()
            before = []
        after = [feed.at for parts in world.feeds.values() for feed in parts.values()]
        assert before != after, "nobody can go on"


@given(feeds, st.dictionaries(st.sampled_from("abc"), st.integers(0, 500)), st.randoms(use_true_random=False))
def test_none_is_further_ahead_than_the_drift_and_one_batch(
    shape: dict[str, dict[str, list[int]]], start: dict[str, int], chance: object
) -> None:
    """With each batch told before the next of the same source, and first batches aside: those nobody can foresee."""
    world = world_of(shape, start, None)
    sources = sorted(world.feeds)
    for _ in range(60):
        source = chance.choice(sources)  # type: ignore[attr-defined]
        told = dict(world.told)
        if world.poll(source):
            others = [at for (who, name), at in told.items() if who != source and world.feeds[who][name].has_data]
            (read,) = (times for who, _, times in world.on_the_way if who == source)
            for name, time in read.items():
                known = told.get((source, name))
                if time is not None and known is not None and others:
                    assert known <= min(others) + DRIFT
        while world.on_the_way:
            world.tell()
