"""What is decided of dead letters without Spark: who may be replayed, how far a source is, what a rewind undoes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from core.checkpoint_values import CLAIM, history, manifest, rewind
from penstock.admin.gc import Owner, assign_owners
from penstock.checkpoint.entries import Manifest, Origin
from penstock.checkpoint.gc import collect
from penstock.checkpoint.history import UNBROKEN, Timeline, abandoned_ids, timeline
from penstock.dead_letters.letters import provenance, replay_inbox, replayed_by
from penstock.dead_letters.replay import POLL_INTERVAL, ReplayInbox, ReplayingReader, open_with_replays
from penstock.dead_letters.store import (
    LetterRange,
    Replay,
    count_rows,
    decode_replay,
    encode_replay,
    intersect_ranges,
    merge_ranges,
    replay_path,
    subtract_ranges,
)
from penstock.elements import SourcePartitions
from penstock.errors import GraphError, StateIncompatible
from penstock.handles import Generation, Position, split_replays, with_replays
from penstock.interfaces.source import CaughtUp, Ended, NoData, PlannedBatch, ReadLimit, SourceContext, Until
from penstock.testing.filesystem import MemoryFileSystem

# ------------------------------------------------------------------------------------------------------------ the graph


def known_of(make) -> Any:
    """What the graph knows of the stream that ``make`` gives up."""
    p = ps.Pipeline("demo")
    stream = make(p)
    return provenance(p.graph(), stream.ref, time=stream.time)


def lines(p: ps.Pipeline) -> ps.Stream:
    return p.read("lines", ps.files.Source("in", format="text"))


def bad(stream: ps.Stream) -> ps.Stream:
    return stream.parse_json("value", "id LONG", on_error="split")[1]


def test_rows_of_a_source_that_nobody_else_reads_go_back_to_it():
    told = known_of(lambda p: bad(lines(p)))
    assert (told.cause, told.step, told.sources) == ("decode", "parse_json value", ("lines",))
    assert (told.source, told.no_replay, told.undecoded) == ("lines", None, "value")
    assert known_of(lambda p: bad(lines(p).where("value <> ''"))).source == "lines", "a filter changes no row"


def test_rows_that_others_read_too_or_that_a_step_has_made_do_not():
    def twice(p: ps.Pipeline) -> ps.Stream:
        raw = lines(p)
        raw.write("archive", ps.console.Sink())
        return bad(raw)

    assert "read 'lines' too, and would get them twice" in known_of(twice).no_replay
    assert "select value stands between" in known_of(lambda p: bad(lines(p).select("value"))).no_replay
    union = known_of(lambda p: bad(lines(p).union(p.read("more", ps.files.Source("more", format="text")))))
    assert union.source is None
    assert union.sources == ("lines", "more")


def test_late_rows_and_those_given_up_later_say_why_they_stay():
    def late(p: ps.Pipeline) -> ps.Stream:
        timed = p.read("in", ps.files.Source("in", schema="u STRING, at TIMESTAMP")).with_watermark("at", "1 second")
        return timed.group_by("u", ps.tumbling("1 minute")).agg("counts", ps.agg.count()).late

    told = known_of(late)
    assert (told.cause, told.step, told.time, told.source) == ("late", "counts", "at", None)
    assert "closed for ever" in told.no_replay
    other = known_of(lambda p: lines(p).where("value = ''"))
    assert (other.cause, other.step) == ("other", "where value = ''")
    assert "were decoded and given up later" in other.no_replay


def test_a_source_knows_which_dead_letters_are_its_own():
    @ps.pipeline("demo")
    def demo(p: ps.Pipeline) -> None:
        parsed, broken = lines(p).parse_json("value", "id LONG", on_error="split")
        broken.dead_letter("bad-lines")
        parsed.where("id < 0").dead_letter("negative", cause="negative-id")

    graph = demo.graph()
    assert replayed_by(graph, "lines") == ("bad-lines",)
    assert replayed_by(graph, "others") == ()
    assert graph.sinks == {"bad-lines", "negative"}


@pytest.mark.parametrize("cause", ["Negative", "no name", ""])
def test_a_cause_is_a_name(cause):
    with pytest.raises(GraphError, match="cause"):
        lines(ps.Pipeline("demo")).dead_letter("odd", cause=cause)


def test_rows_that_have_a_cause_get_no_other():
    with pytest.raises(GraphError, match="these rows are not decoded"):
        bad(lines(ps.Pipeline("demo"))).dead_letter("bad", cause="mine")


def test_only_text_has_a_file_column():
    with pytest.raises(GraphError, match="with_file has no effect for format 'json'"):
        ps.files.Source("in", schema="id LONG", with_file=True)


# ----------------------------------------------------------------------------------------------------- rows of a file


def test_places_are_joined_taken_away_and_cut():
    assert merge_ranges([(3, 4), (0, 1), (1, 3), (9, 9)]) == ((0, 4),)
    assert subtract_ranges(((0, 10), (20, 30)), ((0, 2), (8, 22))) == ((2, 8), (22, 30))
    assert intersect_ranges(((0, 10), (20, 30)), ((8, 22),)) == ((8, 10), (20, 22))
    assert count_rows(((0, 10), (20, 30))) == 20


# ---------------------------------------------------------------------------------------------------------- timelines


def test_what_a_rewind_leaves_is_undone_and_what_comes_after_counts():
    log = history(CLAIM, manifest(0), manifest(1, 0), manifest(3, 1), rewind(1, 3), manifest(4, 1))
    line = timeline(log, 4)
    assert [line.has(each) for each in (0, 1, 2, 3, 4, 5)] == [True, True, False, False, True, True]
    assert timeline(log, 3).has(2), "output of an aborted checkpoint is in the next one"
    assert [timeline(log, None).has(each) for each in (0, 3, 4, 5)] == [False, False, False, True], "an empty start"
    trimmed = history(CLAIM, manifest(7, 6), manifest(8, 7), first=40)
    assert timeline(trimmed, 8).has(2), "of what the log no longer knows nothing was undone"


class Log:
    """A log that collects as a job does; beside it all that was ever in it."""

    def __init__(self) -> None:
        self.whole = history(CLAIM)
        self.kept = self.whole

    def append(self, body: Any) -> None:
        if isinstance(body, Manifest):
            body = collect(body, self.kept, retained=2, deleted=self.kept.tail)
        number = self.whole.tail + 1
        entry = replace(self.whole.entries[-1], number=number, body=body)
        self.whole = replace(self.whole, entries=(*self.whole.entries, entry), tail=number)
        kept = replace(self.kept, entries=(*self.kept.entries, entry), tail=number)
        self.kept = replace(kept, entries=tuple(each for each in kept.entries if each.number >= kept.floor))


@given(st.lists(st.integers(min_value=-3, max_value=12), max_size=40))
def test_what_a_rewind_has_undone_stays_undone_when_the_log_forgets_it(steps):
    """Most steps are checkpoints, some skip an id; others go back to one that can still be restored, or begin empty."""
    log, last, following = Log(), None, 0
    for step in steps:
        if step <= 0 and log.kept.restorable:
            targets = [None, *sorted(log.kept.restorable)]
            log.append(rewind(targets[step % len(targets)], last))
            last = targets[step % len(targets)]
        else:
            following += 2 if step > 10 else 1
            log.append(manifest(following, last))
            last = following
        for each in (last, *log.kept.restorable):
            assert_same(log, each)


def assert_same(log: Log, restored: int | None) -> None:
    forgetful, whole = timeline(log.kept, restored), by_parents(log.whole, restored)
    newest = max(log.whole.manifests, default=0) + 2
    assert [forgetful.has(each) for each in range(newest)] == [whole.has(each) for each in range(newest)]


def by_parents(whole: Any, restored: int | None) -> Timeline:
    """By parents alone."""
    return replace(timeline(whole, restored), undone=())


def test_letters_that_a_rewind_has_undone_are_undone_for_ever():
    log = Log()
    for body in (manifest(0), manifest(1, 0), manifest(2, 1), manifest(3, 2), rewind(2, 3)):
        log.append(body)
    for each in range(4, 12):
        log.append(manifest(each, 2 if each == 4 else each - 1))
    assert min(log.kept.manifests) > 4, "the log has forgotten the rewind"
    assert [timeline(log.kept, 11).has(each) for each in range(6)] == [True, True, True, False, True, True]


def without_entry(log: Any, number: int) -> Any:
    """The same log with an entry that cannot be read."""
    return replace(log, entries=tuple(entry for entry in log.entries if entry.number != number))


def test_R8_what_a_checkpoint_that_cannot_be_read_has_put_there_is_undone_by_going_past_it():
    bodies = (CLAIM, manifest(0), manifest(1, 0), rewind(0, None, lost=(2,)))
    log = without_entry(history(*bodies), 2)
    assert [timeline(log, 0).has(each) for each in (0, 1, 2)] == [True, False, False]
    following = log.next_checkpoint
    assert timeline(log, 0).has(following)
    later = without_entry(history(*bodies, manifest(following + 1, 0)), 2)
    line = timeline(later, following + 1)
    assert [line.has(each) for each in (0, 1, following, following + 1)] == [True, False, True, True]
    assert abandoned_ids(manifest(following + 1, 0), log) == ((1, following),), "the log forgets the rewind"


def test_R8_what_lies_before_a_checkpoint_that_cannot_be_read_counts_where_a_later_one_goes_on():
    log = without_entry(history(CLAIM, manifest(0), manifest(1, 0), manifest(3, 1), rewind(3, None, lost=(2,))), 2)
    assert [timeline(log, 3).has(each) for each in (0, 1, 2, 3)] == [True] * 4
    assert [first for first, _ in abandoned_ids(manifest(log.next_checkpoint, 3), log)] == [4]

    left = (CLAIM, manifest(0), manifest(1, 0), rewind(0, 1), manifest(2, 0), manifest(3, 2, undone=((1, 2),)))
    log = without_entry(history(*left, rewind(3, None, lost=(4,))), 4)
    assert [timeline(log, 3).has(each) for each in (0, 1, 2, 3)] == [True, False, True, True]


def test_without_a_rewind_no_checkpoint_says_anything():
    log = Log()
    for each in range(9):
        log.append(manifest(2 * each, 2 * each - 2 if each else None))
    assert {each.undone for _, each in log.kept.manifests.values()} == {()}


def test_what_was_exported_from_this_log_goes_on_where_it_was():
    came = Origin(log_id="log-1", job="orders", checkpoint=3, export="e")
    log = history(CLAIM, manifest(0), manifest(2, 0, undone=()), rewind(0, 2), manifest(3, 0), manifest(4, 3))
    brought = manifest(5, origin=came)
    assert abandoned_ids(brought, log) == ((1, 3), (4, 5))
    later = history(CLAIM, *(entry.body for entry in log.entries[1:]), brought, manifest(6, 5))
    assert [timeline(later, 6).has(each) for each in range(8)] == [True, False, False, True, False, True, True, True]

    long_ago = history(CLAIM, manifest(7, 6), manifest(8, 7), first=40)
    assert abandoned_ids(manifest(9, origin=came, undone=((1, 3),)), long_ago) == ((1, 3), (4, 9))
    foreign = manifest(9, origin=replace(came, log_id="another"), undone=((1, 3),))
    assert abandoned_ids(foreign, long_ago) == ((0, 9),), "its letters are elsewhere, and its numbers mean others"


def test_no_clean_up_takes_letters_for_its_own():
    files = ["deadletters/bad-lines/part-1.parquet", "deadletters/bad-lines/_replays/00000000000000000001.json"]
    files += ["deadletters/7/.penstock/log-1/7/0/3/part-0.parquet"]
    found = assign_owners(history(CLAIM, manifest(0), CLAIM), files, own=Generation(2))
    assert set(found.values()) == {Owner.DEAD_LETTERS}


# ------------------------------------------------------------------------------------------------------------ replays

UID = "bad-lines"


def a_replay(number: int, *files: tuple[int, tuple[int, int]], source: str = "lines") -> Replay:
    letters = tuple(LetterRange(file=name(checkpoint), ranges=(span,)) for checkpoint, span in files)
    return Replay(number=number, command="c-1", uid=UID, source=source, after=5, at=7, by="somebody", letters=letters)


def name(checkpoint: int) -> str:
    return f"part-5f1c3a7e-{UID}-{checkpoint}-0-00.zstd.parquet"


@dataclass
class Box:
    """A job's directory with letters of checkpoints 1 to 3."""

    files: MemoryFileSystem = field(default_factory=MemoryFileSystem)

    def __post_init__(self) -> None:
        for checkpoint in (1, 2, 3):
            self.files.create(f"deadletters/{UID}/{name(checkpoint)}", b"PAR1")

    def put(self, replay: Replay) -> None:
        self.files.create(replay_path(UID, replay.number), encode_replay(replay))

    @staticmethod
    def frame(replay: Replay, schema: Any) -> Any:
        raise AssertionError

    def box(self, uids: tuple[str, ...] = (UID,), undone: tuple[int, ...] = ()) -> ReplayInbox:
        return ReplayInbox(
            uids=uids,
            filesystem=self.files,
            on_timeline=lambda checkpoint: checkpoint not in undone,
            frame=self.frame,
        )


@dataclass
class Inner:
    """A source and its reader: says what it was told to say, then that there is nothing."""

    answers: list[Any] = field(default_factory=list)
    partition_column: str | None = None
    resumed: Position | None = None
    completed: list[Position] = field(default_factory=list)
    guarantee: Any = None

    def open(self, context: SourceContext, resume: Position | None) -> Inner:
        self.resumed = resume
        return self

    def schema(self, spark: Any) -> Any:
        raise AssertionError

    def describe(self) -> str:
        return "told"

    def poll(self, *, now: int, wall: int, limits: ReadLimit) -> Any:
        return self.answers.pop(0) if self.answers else NoData(wake_at=now + 10 * POLL_INTERVAL)

    def frame(self, plan: object) -> Any:
        return ("inner", plan)

    def position(self) -> Position:
        return Position(kind="told/1", detail={"next": 9})

    def committed(self, checkpoint: int, position: Position) -> None:
        self.completed.append(position)

    def close(self) -> None:
        pass


BEGUN = Position(kind="told/1", detail={"next": 0})
"""Of a source that has read no replay."""


def opened(inner: Inner, box: ReplayInbox, resume: Position | None = BEGUN, until: Until = Until.STOPPED) -> Any:
    return open_with_replays(inner, SourceContext(uid="lines", spark=None, until=until), resume, box)


def poll(reader: Any, now: int = 0) -> Any:
    return reader.poll(now=now, wall=now, limits=ReadLimit())


def test_a_replay_is_what_was_written():
    replay = a_replay(1, (1, (0, 2)), (3, (4, 9)))
    assert decode_replay(encode_replay(replay), "here") == replay
    assert replay.rows == 7
    for broken in (b"{", b"[]", b'{"format": 1}'):
        with pytest.raises(StateIncompatible, match="here is not a replay"):
            decode_replay(broken, "here")
    with pytest.raises(StateIncompatible, match="is of format 2, and this penstock knows 1"):
        decode_replay(b'{"format": 2}', "here")


def test_replays_are_read_in_order_once_and_the_position_says_how_many():
    box = Box()
    box.put(a_replay(1, (1, (0, 2))))
    reader = opened(Inner(), box.box())
    found = poll(reader)
    assert isinstance(found, PlannedBatch)
    assert (found.plan.number, found.rows) == (1, 2)
    assert isinstance(poll(reader, 1), NoData)
    assert reader.position() == Position(kind="told/1", detail={"next": 9, "replayed": {UID: 1}})

    box.put(a_replay(2, (2, (0, 1))))
    inner = Inner()
    again = opened(inner, box.box(), reader.position())
    assert inner.resumed == Position(kind="told/1", detail={"next": 9}), "the source gets its own words"
    assert poll(again).plan.number == 2
    again.committed(4, again.position())
    assert inner.completed == [inner.position()]


def test_a_look_costs_one_file_that_is_not_there_a_second():
    box = Box()
    reader = opened(Inner(), box.box())
    box.files.operations.clear()
    answers = [poll(reader, now) for now in range(0, POLL_INTERVAL, POLL_INTERVAL // 100)]
    assert [each.name for each in box.files.operations] == ["read"]
    assert {each.wake_at for each in answers} == {POLL_INTERVAL}, "it is asked again when it is time to look"
    box.put(a_replay(1, (1, (0, 2))))
    assert isinstance(poll(reader, POLL_INTERVAL), PlannedBatch)


def test_letters_that_a_rewind_has_undone_or_that_are_gone_are_left_out():
    box = Box()
    box.put(a_replay(1, (1, (0, 2)), (3, (0, 5)), (9, (0, 7))))
    box.put(a_replay(2, (3, (5, 6))))
    box.put(a_replay(3, (2, (0, 4)), source="elsewhere"))
    reader = opened(Inner(), replace(box.box(undone=(3,)), others=frozenset({"elsewhere"})))
    found = poll(reader)
    assert [each.file for each in found.plan.letters] == [name(1)]
    assert found.rows == 2
    assert isinstance(poll(reader), NoData)
    assert reader.position().detail["replayed"] == {UID: 3}


def test_a_source_that_was_renamed_reads_what_was_asked_for_under_its_old_uid():
    box = Box()
    box.put(a_replay(1, (1, (0, 2)), source="old-lines"))
    reader = opened(Inner(), replace(box.box(), others=frozenset({"more"})))
    assert poll(reader).rows == 2


def test_a_source_knows_the_others_of_its_pipeline():
    @ps.pipeline("demo")
    def demo(p: ps.Pipeline) -> None:
        lines(p).union(p.read("more", ps.files.Source("more", format="text"))).dead_letter("odd")

    box = replay_inbox(demo.graph(), "lines", MemoryFileSystem(), UNBROKEN.has, Box.frame, has_ended=False)
    assert box.others == {"more"}


def test_a_source_that_begins_anew_reads_no_replay_of_before():
    box = Box()
    box.put(a_replay(1, (1, (0, 2))))
    box.put(a_replay(2, (2, (0, 2))))
    inner = Inner()
    reader = opened(inner, box.box(), resume=None)
    assert inner.resumed is None
    assert isinstance(poll(reader), NoData)
    assert reader.position().detail["replayed"] == {UID: 2}
    box.put(a_replay(3, (3, (0, 1))))
    assert poll(reader, POLL_INTERVAL).plan.number == 3


@pytest.mark.parametrize("end", [CaughtUp(), Ended()])
def test_a_source_ends_only_when_the_replays_are_read_that_were_there(end):
    box = Box()
    box.put(a_replay(1, (1, (0, 2))))
    reader = opened(Inner([end, end, end]), box.box(), until=Until.CAUGHT_UP)
    box.put(a_replay(2, (2, (0, 1))))  # came later
    assert poll(reader).plan.number == 1
    assert poll(reader) == end


def test_a_source_with_partitions_is_asked_first_and_they_stay_its_own():
    box = Box()
    box.put(a_replay(1, (1, (0, 2))))
    named = SourcePartitions(names=("0", "1"), behind=frozenset({"1"}), column="part")
    reader = opened(Inner([PlannedBatch(plan="first", partitions=named)], partition_column="part"), box.box())
    assert poll(reader).plan == "first"
    assert poll(reader).partitions == SourcePartitions(names=("0", "1"), column="part")

    quiet = opened(Inner(partition_column="part"), box.box())
    assert poll(quiet).partitions == SourcePartitions(names=()), "until it has named them: the next batch takes it back"


def test_without_dead_letters_a_source_is_what_it_was_and_a_position_keeps_what_it_says_of_them():
    box, inner = Box(), Inner()
    assert opened(inner, box.box(uids=())) is inner
    box.put(a_replay(3, (1, (0, 2))))
    resume = with_replays(inner.position(), {UID: 2})
    reader = opened(inner, box.box(uids=()), resume)
    assert isinstance(reader, ReplayingReader)
    assert isinstance(poll(reader), NoData)
    assert reader.position() == resume


@pytest.mark.parametrize("detail", [{"next": 1}, [1, 2], 7, None, "x"])
def test_positions_of_any_shape_come_apart_as_they_were_put_together(detail):
    own = Position(kind="any/1", detail=detail)
    assert split_replays(with_replays(own, {UID: 3})) == (own, {UID: 3})
    assert split_replays(own) == (own, {})
    assert with_replays(own, {}) is own


# ----------------------------------------------------------------------------------------------- writing under trouble


class Directory:
    """As much of a job's directory as writing a replay needs."""

    def __init__(self, files: Any) -> None:
        self.filesystem = files


def test_a_number_that_somebody_was_faster_to_take_is_not_ours_and_a_lost_answer_is_asked_for_again():
    from penstock.admin.dead_letter_replay import _create

    box = Box()
    mine, theirs = a_replay(1, (1, (0, 2))), a_replay(1, (1, (0, 1)))
    box.put(theirs)
    assert not _create(Directory(box.files), mine)

    box = Box()
    box.files.lose_answer("create")
    assert _create(Directory(box.files), mine)
    assert decode_replay(box.files.read(replay_path(UID, 1)), "") == mine

    box = Box()
    box.files.delay("create")
    assert _create(Directory(box.files), mine)
    box.files.land()
    assert decode_replay(box.files.read(replay_path(UID, 1)), "") == mine
