"""Sources that are read up to where another run has read them, by a run of which nobody outside learns."""

import os

import pytest

from core.kafka_kit import Bench, FakeCluster
from penstock.connectors import generator, rate
from penstock.connectors.files.source import Source
from penstock.connectors.kafka.source import Source as KafkaSource
from penstock.errors import StateIncompatible
from penstock.handles import CheckpointId, Position
from penstock.interfaces.source import CaughtUp, Ended, ReadLimit, SourceContext, SupportsReplay, Until

SECOND = 1_000_000
CAUGHT_UP = SourceContext(uid="in", spark=None, until=Until.CAUGHT_UP)


def numbers(source, resume=None, *, wall=100 * SECOND):
    """The numbers that a run until caught up reads, and its last answer."""
    reader = source.open(CAUGHT_UP, resume)
    found = []
    while isinstance(answer := reader.poll(now=0, wall=wall, limits=ReadLimit()), object) and hasattr(answer, "plan"):
        found += range(answer.plan.first, answer.plan.end)
    return found, type(answer), reader.position()


def test_numbers_end_where_the_other_run_has_ended_though_more_are_due_by_now():
    source = rate.Source(10)
    _, _, begun = numbers(source, wall=0)
    assert begun.detail == {"next": 1, "started": 0}
    first, _, end = numbers(source, begun, wall=2 * SECOND)
    later, _, _ = numbers(source, begun, wall=5 * SECOND)
    assert len(later) > len(first)

    assert numbers(source.replayed(end), begun, wall=5 * SECOND) == (first, CaughtUp, end)
    assert numbers(source.replayed(None), begun, wall=2 * SECOND)[0] == first


def test_a_source_of_no_end_has_one_when_it_is_replayed():
    source = generator.Source(lambda frame: frame, per_batch=4)
    end = Position(kind="generator/1", detail={"next": 10, "started": 0})

    begun = Position(kind="generator/1", detail={"next": 4, "started": 0})

    assert numbers(source.replayed(end), begun) == ([*range(4, 10)], CaughtUp, end)


def test_one_that_has_ended_ends_again():
    source = generator.Source(lambda frame: frame, rows=6)
    end = Position(kind="generator/1", detail={"next": 6, "started": 0})

    assert numbers(source.replayed(end))[:2] == ([*range(6)], Ended)


def test_files_that_came_later_are_left_out(tmp_path):
    for number, name in enumerate(["a.txt", "b.txt"]):
        (tmp_path / name).write_text("row\n")
        os.utime(tmp_path / name, ns=(number, number))
    source = Source(tmp_path, format="text")
    end = Position(kind="files/1", detail={"done": {"a.txt": [4, 0], "gone.txt": [4, 0]}, "partial": None})

    assert set(source.directory.listing()) == {"a.txt", "b.txt"}
    assert set(source.replayed(end).directory.listing()) == {"a.txt"}
    assert set(source.replayed(end).replayed(None).directory.listing()) == {"a.txt", "b.txt"}


def test_offsets_end_where_the_other_run_has_ended_and_nothing_is_committed():
    cluster = FakeCluster(orders=2)
    cluster.log(0).append(*[b"v"] * 3)
    cluster.log(1).append(b"v")
    first = Bench(cluster, until=Until.CAUGHT_UP, group="shop")
    assert isinstance(first.until_quiet(), CaughtUp)
    end = first.reader.position()
    cluster.log(0).append(*[b"v"] * 5)

    second = Bench(cluster, until=Until.CAUGHT_UP, group="shop")
    second.source = second.source.replayed(end)
    second.reader.close()
    second.open(None)
    assert isinstance(second.until_quiet(), CaughtUp)
    assert (second.offsets(0), second.offsets(1)) == ([0, 1, 2], [0])
    assert second.reader.position() == end
    second.reader.committed(CheckpointId(1), end)
    second.poll()
    second.reader.close()
    assert cluster.commits == []


def test_a_position_of_another_kind_is_refused():
    strange = Position(kind="other/1", detail={})
    for source in (
        rate.Source(1),
        Source("/in", format="text"),
        KafkaSource(servers="localhost:9092", topics=["orders"]),
    ):
        assert isinstance(source, SupportsReplay)
        with pytest.raises(StateIncompatible, match="'other/1'"):
            source.replayed(strange)
