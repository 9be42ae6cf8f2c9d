"""What waits for a source at a position: asked without a session, and nothing is changed by asking."""

import os

import pytest

from core.kafka_kit import FakeCluster
from penstock.connectors.files.listing import FileSignature, FileSlice, FilesPosition, encode
from penstock.connectors.files.source import Source as Files
from penstock.connectors.kafka.metadata import backlog_between, backlog_of
from penstock.connectors.kafka.offsets import AvailableOffsets, Topic, TopicPartition
from penstock.connectors.kafka.offsets import KafkaPosition as Offsets
from penstock.connectors.kafka.offsets import encode as encode_offsets
from penstock.connectors.kafka.source import Source as Kafka
from penstock.connectors.rate import Source as Rate
from penstock.errors import ConnectorError, GraphError, SourceChanged, SourceUnavailable, StateIncompatible
from penstock.handles import Position
from penstock.interfaces.source import SupportsBacklog


def signature(path):
    status = path.stat()
    return FileSignature(status.st_size, status.st_mtime_ns)


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text("x" * 10)
    (tmp_path / "_hidden").write_text("x")
    return tmp_path


def read(folder, *names, partial=None):
    done = {f"{name}.txt": signature(folder / f"{name}.txt") for name in names}
    part = None
    if partial is not None:
        part = FileSlice(name=f"{partial}.txt", signature=signature(folder / f"{partial}.txt"), start=4, end=10)
    return encode(FilesPosition(done=done, partial=part))


def test_files_that_were_not_read_wait_with_their_bytes(folder):
    source = Files(folder, format="text")

    for position, files, size in [
        (None, 3, 30),
        (read(folder, "a"), 2, 20),
        (read(folder, "a", partial="b"), 2, 16),
        (read(folder, "a", "b", "c"), 0, 0),
    ]:
        waiting = source.backlog(position)
        assert (waiting.files, waiting.bytes, waiting.rows) == (files, size, None)


def test_a_bounded_source_waits_for_no_more_than_it_began_with(folder):
    begun = encode(FilesPosition(remaining={"a.txt": signature(folder / "a.txt")}))

    assert Files(folder, format="text", bounded=True).backlog(begun).files == 1
    assert Files(folder, format="text").backlog(begun).files == 3


def test_what_a_start_would_stumble_over_is_raised(folder, tmp_path):
    position = read(folder, "a")
    (folder / "a.txt").write_text("other")

    with pytest.raises(SourceChanged, match=r"File 'a\.txt' was read"):
        Files(folder, format="text").backlog(position)
    with pytest.raises(SourceUnavailable, match="cannot be listed"):
        Files(tmp_path / "nowhere", format="text").backlog(position)
    with pytest.raises(GraphError, match=r"'\S+/nowhere' does not exist"):
        Files(tmp_path / "nowhere", format="text").backlog(None)
    with pytest.raises(StateIncompatible, match="rate/1"):
        Files(folder, format="text").backlog(Position(kind="rate/1", detail={}))


def test_asking_changes_no_file(folder):
    before = sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(folder))

    Files(folder, format="text").backlog(None)

    assert sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(folder)) == before


def test_who_counts_up_cannot_tell_what_waits():
    assert not isinstance(Rate(10), SupportsBacklog)
    assert isinstance(Files("in", format="text"), SupportsBacklog)


# --------------------------------------------------------------------------------------------------------------- Kafka


def part(number):
    return TopicPartition("orders", number)


def topic(*extents, id="x1"):
    return {"orders": Topic(id=id, partitions={number: AvailableOffsets(*each) for number, each in enumerate(extents)})}


def at(*offsets, id="x1"):
    return Offsets(ids={"orders": id}, next={part(number): offset for number, offset in enumerate(offsets)})


def source(**more):
    return Kafka(servers="localhost:9092", topics=["orders"], **more)


def found(progress, topics, *, resumed=True, **more):
    return backlog_between(source(**more), progress, topics, resumed=resumed)


def test_offsets_between_the_position_and_the_end_wait_by_partition():
    waiting = found(at(120, 50), topic((0, 1_204), (0, 50)))

    assert waiting.rows == 1_084
    assert waiting.partitions == {"orders-0": (120, 1_204), "orders-1": (50, 50)}
    assert waiting.warnings == ()


def test_a_partition_that_is_new_waits_from_its_beginning_on():
    assert found(at(10), topic((0, 10), (5, 9))).partitions == {"orders-0": (10, 10), "orders-1": (5, 9)}


@pytest.mark.parametrize(("goes_on", "then"), [("fail", "the start fails"), ("continue", "left out and reported")])
def test_records_that_are_gone_are_warned_of_with_what_happens_then(goes_on, then):
    [warning] = found(at(3), topic((7, 20)), on_lost_offsets=goes_on).warnings

    assert warning.startswith("orders-0: expired, 4 offsets from 3 on can no longer be read: ")
    assert then in warning


def test_a_topic_that_was_made_again_is_warned_of():
    [warning] = found(at(3), topic((0, 20), id="x2")).warnings

    assert "recreated" in warning


@pytest.mark.parametrize(
    ("position", "extent", "near"),
    [
        (101, (100, 200), True),
        (109, (100, 200), True),
        (110, (100, 200), False),
        (0, (0, 200), False),  # nothing was ever deleted
        (200, (100, 200), False),  # nothing waits
    ],
)
def test_retention_close_behind_the_position_is_warned_of(position, extent, near):
    warnings = found(at(position), topic(extent)).warnings

    assert bool(warnings) is near
    assert all("retention may delete what waits before it is read" in warning for warning in warnings)


def test_a_first_start_at_the_earliest_record_is_no_matter_for_a_warning():
    assert found(at(100), topic((100, 200)), resumed=False).warnings == ()


def test_the_cluster_is_asked_nothing_is_committed_and_it_is_let_go_of():
    cluster = FakeCluster(orders=1)
    cluster.log().append(b"a", b"b", b"c")

    waiting = backlog_of(source(group="shop"), None, cluster=cluster)
    resumed = backlog_of(source(group="shop"), encode_offsets(at(2, id=None)), cluster=cluster)

    assert (waiting.rows, resumed.rows) == (3, 1)
    assert (cluster.commits, cluster.consumers, cluster.closed) == ([], [], 2)


def test_a_cluster_that_is_away_is_let_go_of_too():
    cluster = FakeCluster(orders=1)
    cluster.away = ConnectorError("away")

    with pytest.raises(ConnectorError, match="away"):
        backlog_of(source(), None, cluster=cluster)
    assert cluster.closed == 1
