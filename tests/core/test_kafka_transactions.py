"""Epochs are published to Kafka once each, whatever a call is answered; a marker says which were."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

import penstock as ps
from kafka_broker import MemoryBroker
from penstock.admin.verify import OutputLocation, locate_output
from penstock.connectors.epochs import StagedBatch
from penstock.connectors.kafka import transactions
from penstock.connectors.kafka.client import Connection
from penstock.connectors.kafka.features import parse_transaction_version, transaction_version
from penstock.connectors.kafka.identity import Identity, Marker, OnLostMarker
from penstock.connectors.kafka.sink import TransactionWriter
from penstock.connectors.kafka.transactions import (
    ClientFailure,
    KafkaCommitter,
    Reaction,
    Step,
    reaction,
    refuse_another_log,
    renew,
    take_identity,
)
from penstock.connectors.secrets import env, file
from penstock.errors import (
    CheckpointUnreadable,
    CommitFailed,
    ConnectorError,
    GenerationFenced,
    GraphError,
    SinkIdentityConflict,
    SinkUnavailable,
)
from penstock.filesystem.local import LocalFileSystem
from penstock.graph.validate import validate
from penstock.handles import CheckpointId, CommitOutcome, Committable, FileRef, Generation
from penstock.interfaces.sink import CommitContext, HasIdentity, SinkContext
from penstock.testing.clock import ManualClock

LOG = "0123456789abcdef"
IDENTITY = Identity(
    connection=Connection(servers="k:9092", options={}), transactional_id="shop-0", topic="counts", log_id=LOG
)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def filesystem(tmp_path: Path) -> LocalFileSystem:
    return LocalFileSystem(tmp_path)


def staged(filesystem: LocalFileSystem, checkpoint: int, *values: bytes, identity: Identity = IDENTITY) -> Committable:
    path = f"staged/out/1/{checkpoint}/part-0.parquet"
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"value": pa.array(values, pa.binary())}), sink)
    content = sink.getvalue().to_pybytes()
    filesystem.create(path, content)
    return Committable(
        uid="out",
        kind="kafka/1",
        checkpoint=CheckpointId(checkpoint),
        target="kafka counts at k:9092",
        files=(FileRef(path=path, length=len(content), sha256=""),),
        detail=identity.to_json(),
    )


def started(broker: MemoryBroker, *, next: int = 1, **more):
    """A process whose run has begun: its publisher has the identity."""
    publishers = broker.publishers()
    publisher = publishers.acquire(IDENTITY)
    take_identity(publisher, uid="out", next_checkpoint=next, check_owner=more.get("check_owner", lambda: None))
    return publishers


def committer(filesystem, publishers, **more) -> KafkaCommitter:
    return KafkaCommitter(CommitContext(filesystem=filesystem, **more), publishers)


def values(broker: MemoryBroker) -> list[bytes]:
    return [record.value for record in broker.committed]


# ---- the way that all goes well --------------------------------------------------------------------------------------


def test_an_epoch_and_its_marker_are_one_transaction_and_the_producer_is_kept(broker, filesystem):
    publishers = started(broker)
    assert broker.markers == {"shop-0": Marker(LOG, 1)}
    assert broker.calls == [Step.FENCE, Step.READ, Step.BEGIN, Step.PRODUCE, Step.MARK, Step.COMMIT]
    commit = committer(filesystem, publishers).commit
    items = [staged(filesystem, 1, b"a", b"b"), staged(filesystem, 3, b"c")]
    assert [commit(item) for item in items] == [CommitOutcome.DONE] * 2
    assert values(broker) == [b"a", b"b", b"c"]
    assert broker.markers == {"shop-0": Marker(LOG, 4)}
    assert broker.made == {"shop-0": 1}
    assert [commit(item) for item in items] == [CommitOutcome.ALREADY_DONE] * 2
    assert values(broker) == [b"a", b"b", b"c"]


def test_another_process_publishes_what_is_open_and_lets_go_of_the_identity(broker, filesystem):
    publishers = started(broker)
    items = [staged(filesystem, 1, b"a"), staged(filesystem, 2, b"b")]
    committer(filesystem, publishers).commit(items[0])
    settle = committer(filesystem, broker.publishers())
    assert [settle.commit(item) for item in items] == [CommitOutcome.ALREADY_DONE, CommitOutcome.DONE]
    assert (values(broker), broker.closed) == ([b"a", b"b"], 2)


def test_what_is_void_is_never_published_and_what_is_published_not_void(broker, filesystem):
    publishers = started(broker)
    act = committer(filesystem, publishers)
    first, second = staged(filesystem, 1, b"a"), staged(filesystem, 2, b"b")
    act.commit(first)
    assert act.void(first) is CommitOutcome.ALREADY_DONE
    assert act.void(second) is CommitOutcome.DONE
    assert act.void(second) is CommitOutcome.ALREADY_DONE
    assert act.commit(second) is CommitOutcome.ALREADY_DONE
    assert values(broker) == [b"a"]


# ---- each answer of a client -----------------------------------------------------------------------------------------

CODES = [
    *((code, False, Reaction.LOOK_AT_LOG) for code in ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")),
    *(
        (code, True, Reaction.REPEAT)
        for code in ("_TIMED_OUT", "COORDINATOR_LOAD_IN_PROGRESS", "CONCURRENT_TRANSACTIONS")
    ),
    *(
        (code, False, Reaction.BEGIN_AGAIN)
        for code in ("_TIMED_OUT", "_STATE", "_INCONSISTENT", "_FATAL", "_TRANSPORT")
    ),
    *((code, False, Reaction.BEGIN_AGAIN) for code in ("INVALID_PRODUCER_ID_MAPPING", "INVALID_TXN_STATE", "UNKNOWN")),
    *((code, False, Reaction.GIVE_UP) for code in ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART")),
    *((code, True, Reaction.GIVE_UP) for code in ("TOPIC_AUTHORIZATION_FAILED", "INVALID_TRANSACTION_TIMEOUT")),
]


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize(("code", "retriable", "expected"), CODES)
def test_each_error_has_its_reaction(step, code, retriable, expected):
    if step is Step.PRODUCE and expected is Reaction.REPEAT:
        expected = Reaction.BEGIN_AGAIN  # a part of the epoch may have been handed over
    failure = ClientFailure(code, "", retriable=retriable)
    assert reaction(step, failure) is expected
    if expected is Reaction.REPEAT:
        assert reaction(step, failure, repeats=5) is Reaction.BEGIN_AGAIN


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("code", ["_FENCED", "_TIMED_OUT", "_STATE", "_INCONSISTENT", "_FATAL"])
def test_after_an_error_of_any_call_the_epoch_is_there_once(broker, filesystem, step, code, applied):
    publishers, item = started(broker), staged(filesystem, 1, b"a", b"b")
    commit = committer(filesystem, broker.publishers() if step in (Step.FENCE, Step.READ) else publishers).commit
    broker.fails(step, code, applied=applied)
    with pytest.raises(CommitFailed, match=r"^step 'out': #1 of 'out' is not known to be published to kafka counts"):
        commit(item)
    made = broker.made["shop-0"]
    assert commit(item) in (CommitOutcome.DONE, CommitOutcome.ALREADY_DONE)
    assert broker.made["shop-0"] == made + 1, "a producer is not used again after an error"
    assert values(broker) == [b"a", b"b"]
    assert commit(staged(filesystem, 2, b"c")) is CommitOutcome.DONE
    assert values(broker) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("step", [step for step in Step if step is not Step.PRODUCE])
def test_what_the_client_calls_retriable_is_called_again_on_the_same_producer(broker, filesystem, step):
    publishers, item = started(broker), staged(filesystem, 1, b"a")
    if step in (Step.FENCE, Step.READ):
        publishers = broker.publishers()
    made = broker.made["shop-0"]
    broker.fails(step, "_TIMED_OUT", retriable=True, times=3)
    assert committer(filesystem, publishers).commit(item) is CommitOutcome.DONE
    assert values(broker) == [b"a"]
    assert broker.made["shop-0"] - made <= 1


def test_what_only_somebody_can_mend_ends_the_job_with_the_remedy(broker, filesystem):
    publishers, item = started(broker), staged(filesystem, 1, b"a")
    broker.fails(Step.MARK, "GROUP_AUTHORIZATION_FAILED")
    with pytest.raises(ConnectorError, match="Grant READ on the marker's consumer group") as refused:
        committer(filesystem, publishers).commit(item)
    assert refused.value.retry is False
    assert committer(filesystem, publishers).commit(item) is CommitOutcome.DONE


def test_a_driver_that_was_fenced_looks_at_the_log_before_it_fences_in_turn(broker, filesystem):
    def lost() -> None:
        msg = "Another process owns the log."
        raise GenerationFenced(msg)

    zombie, item = started(broker), staged(filesystem, 1, b"a")
    owner = started(broker)
    act = committer(filesystem, zombie, check_owner=lost)
    with pytest.raises(CommitFailed, match="Another producer took this transactional id"):
        act.commit(item)
    fences = broker.calls.count(Step.FENCE)
    with pytest.raises(GenerationFenced):
        act.commit(item)
    assert broker.calls.count(Step.FENCE) == fences, "it took nothing from the owner"
    assert committer(filesystem, owner).commit(item) is CommitOutcome.DONE
    assert values(broker) == [b"a"]


def test_the_owner_that_a_zombie_fenced_once_goes_on(broker, filesystem):
    owner, item = started(broker), staged(filesystem, 1, b"a")
    committer(filesystem, broker.publishers()).commit(item)
    asked = []
    act = committer(filesystem, owner, check_owner=lambda: asked.append("log"))
    with pytest.raises(CommitFailed):
        act.commit(staged(filesystem, 2, b"b"))
    assert act.commit(item) is CommitOutcome.ALREADY_DONE
    assert asked == ["log"]


# ---- identities and markers ------------------------------------------------------------------------------------------


def test_a_lost_committable_fails_unless_the_marker_shows_that_it_was_published(broker, filesystem):
    act = committer(filesystem, started(broker))
    first, second = staged(filesystem, 1, b"a"), staged(filesystem, 2, b"b")
    act.commit(first)
    for item in (first, second):
        filesystem.delete(item.files[0].path)
    act.check_committable(first)
    assert act.commit(first) is CommitOutcome.ALREADY_DONE
    for refuses in (act.check_committable, act.commit):
        with pytest.raises(CheckpointUnreadable, match="so its rows cannot be published"):
            refuses(second)
    assert (values(broker), broker.markers["shop-0"]) == ([b"a"], Marker(LOG, 2))


def test_a_marker_of_another_log_is_a_conflict_and_never_counts_as_done(broker, filesystem):
    """A state directory that was lost, and two jobs with one prefix: protocol.md 22."""
    other = replace(IDENTITY, log_id="fedcba9876543210")
    act = committer(filesystem, started(broker, next=9))
    item = staged(filesystem, 2, b"a", identity=other)
    broker.calls.clear()
    with pytest.raises(SinkIdentityConflict, match=r"written by another log \(0123456789abcdef\)"):
        refuse_another_log(other, None, "out", broker.publishers())
    with pytest.raises(SinkIdentityConflict):
        act.check_committable(item)
    assert broker.calls == [], "nothing is taken from a job that may be alive"
    with pytest.raises(SinkIdentityConflict):
        act.commit(item)
    publisher = broker.publishers().acquire(other)
    with pytest.raises(SinkIdentityConflict):
        take_identity(publisher, uid="out", next_checkpoint=20, check_owner=lambda: None)
    assert act.void(item) is CommitOutcome.DONE
    assert (values(broker), broker.markers["shop-0"]) == ([], Marker(LOG, 9))
    refuse_another_log(IDENTITY, LOG, "out", broker.publishers())


def test_an_offset_that_penstock_did_not_write_is_a_conflict(broker):
    broker.markers["shop-0"] = Marker("", 7)
    with pytest.raises(SinkIdentityConflict, match="written by another program"):
        refuse_another_log(IDENTITY, LOG, "out", broker.publishers())


def test_a_marker_above_the_log_says_that_the_state_directory_is_an_old_copy(broker):
    broker.markers["shop-0"] = Marker(LOG, 12)
    publisher = broker.publishers().acquire(IDENTITY)
    with pytest.raises(SinkIdentityConflict, match="The state directory is an older copy"):
        take_identity(publisher, uid="out", next_checkpoint=11, check_owner=lambda: None)


def test_a_marker_that_is_lost_while_something_is_open_stops_the_job_until_somebody_decides(broker, filesystem):
    """protocol.md 23."""
    item = staged(filesystem, 1, b"a")
    started(broker)
    del broker.markers["shop-0"]
    act = committer(filesystem, broker.publishers())
    for refuses in (act.check_committable, act.commit):
        with pytest.raises(SinkIdentityConflict, match="on_lost_marker='publish' if they are not"):
            refuses(item)
    assert values(broker) == []
    decided = replace(item, detail=replace(IDENTITY, on_lost_marker="discard").to_json())
    act.check_committable(decided)
    assert act.commit(decided) is CommitOutcome.ALREADY_DONE
    assert (values(broker), broker.markers["shop-0"]) == ([], Marker(LOG, 2, doubtful=True))


@pytest.mark.parametrize(
    ("decision", "published"), [("publish", [b"a", b"b", b"c"]), ("discard", []), (1, [b"b", b"c"]), (2, [b"c"])]
)
def test_a_decision_about_a_lost_marker_counts_for_all_that_waits(broker, filesystem, decision, published):
    """Simulated seed 7000722: the marker that settled the first output let the second be published again."""
    items = [
        staged(filesystem, n, value, identity=replace(IDENTITY, on_lost_marker=decision))
        for n, value in enumerate((b"a", b"b", b"c"), start=1)
    ]
    started(broker)
    del broker.markers["shop-0"]
    for item in items:
        committer(filesystem, broker.publishers()).commit(item)  # a process each, as after a crash
    assert values(broker) == published
    started(broker, next=4)
    assert broker.markers["shop-0"] == Marker(LOG, 4), "the run began with nothing open, which ends the doubt"


def test_after_a_discard_a_start_without_the_decision_asks_about_the_output_that_is_left(broker, filesystem):
    first, second = staged(filesystem, 1, b"a"), staged(filesystem, 2, b"b")
    started(broker)
    del broker.markers["shop-0"]
    decided = replace(first, detail=replace(IDENTITY, on_lost_marker="discard").to_json())
    committer(filesystem, broker.publishers()).commit(decided)
    act = committer(filesystem, broker.publishers())
    assert act.commit(first) is CommitOutcome.ALREADY_DONE
    for refuses in (act.check_committable, act.commit):
        with pytest.raises(SinkIdentityConflict, match=r"as in on_lost_marker=2: what is above it is published"):
            refuses(second)
    assert act.void(second) is CommitOutcome.DONE
    assert (values(broker), broker.markers["shop-0"]) == ([], Marker(LOG, 3, doubtful=True))


def test_the_sink_of_the_running_pipeline_decides_what_is_done_about_a_lost_marker(broker, filesystem):
    def sink(prefix: str) -> ps.kafka.Sink:
        return ps.kafka.Sink(
            servers="k2:9092", topic="counts", transactional_id_prefix=prefix, on_lost_marker="publish"
        )

    item = staged(filesystem, 1, b"a")
    with pytest.raises(SinkIdentityConflict):  # the sink has another name now: the output keeps its own
        committer(filesystem, broker.publishers(), sinks={"out": sink("other")}).commit(item)
    assert committer(filesystem, broker.publishers(), sinks={"out": sink("shop")}).commit(item) is CommitOutcome.DONE
    assert (values(broker), broker.markers["shop-0"]) == ([b"a"], Marker(LOG, 2))


def test_a_marker_that_is_lost_with_nothing_open_is_made_anew_where_no_zombie_can_publish(broker, filesystem):
    zombie, item = started(broker), staged(filesystem, 6, b"a")
    committer(filesystem, zombie).commit(item)
    del broker.markers["shop-0"]
    started(broker, next=7)
    assert broker.markers["shop-0"] == Marker(LOG, 7)
    act = committer(filesystem, zombie)
    with pytest.raises(CommitFailed):
        act.commit(staged(filesystem, 7, b"never"))
    assert act.commit(item) is CommitOutcome.ALREADY_DONE
    assert values(broker) == [b"a"]


def test_verify_does_not_miss_staged_files_whose_publication_the_marker_shows(broker, filesystem, monkeypatch):
    monkeypatch.setattr(transactions.PUBLISHERS, "look", broker.look)
    started(broker, next=2)
    items = [staged(filesystem, 1, b"a"), staged(filesystem, 2, b"b")]
    places = [OutputLocation.PUBLISHED, OutputLocation.LOST]
    assert [locate_output(filesystem, item, item.files[0]) for item in items] == places


def test_a_marker_is_written_again_before_it_expires(broker):
    clock = ManualClock("2026-01-01T00:00:00Z")
    publishers = replace(broker.publishers(), clock=clock)
    publisher = publishers.acquire(IDENTITY)
    take_identity(publisher, uid="out", next_checkpoint=5, check_owner=lambda: None)
    broker.markers.clear()
    assert renew(publisher, lambda: None)
    assert broker.markers == {}, "it is young"
    clock.advance("10 minutes")
    assert renew(publisher, lambda: None)
    assert broker.markers == {"shop-0": Marker(LOG, 5)}
    clock.advance("10 minutes")
    broker.fails(Step.COMMIT, "_TRANSPORT", times=2)
    assert not renew(publisher, lambda: None)
    assert renew(publisher, lambda: None), "it is tried again, from the fence on"


class Run:
    """A run of a sink, with a clock that the test moves."""

    def __init__(
        self, broker: MemoryBroker, filesystem: LocalFileSystem, on_lost_marker: OnLostMarker = "fail", **more
    ):
        self.broker, self.filesystem = broker, filesystem
        self.clock = ManualClock("2026-01-01T00:00:00Z")
        self.publishers = replace(broker.publishers(), clock=self.clock)
        columns = ps.kafka.Sink(servers="k:9092", topic="counts", transactional_id_prefix="shop").columns
        context = SinkContext(
            uid="out",
            spark=None,
            schema=StructType().add("value", "binary"),
            log_id=LOG,
            job="shop",
            generation=Generation(1),
            filesystem=filesystem,
            staging="staged/out/1",
            cores=1,
            next_checkpoint=CheckpointId(5),
            **more,
        )
        identity = replace(IDENTITY, on_lost_marker=on_lost_marker)
        self.writer = TransactionWriter(columns, context, [identity], self.publishers)

    def prepare(self, checkpoint: int, *rows: bytes):
        """What is materialised for a checkpoint with these rows, next to what earlier ones have left."""
        if rows:
            (file,) = staged(self.filesystem, checkpoint, *rows).files
            self.writer._epochs.add(StagedBatch(file.path.rpartition("/")[0], len(rows)))
        return self.writer.prepare(CheckpointId(checkpoint))

    def commit(self, *items: Committable) -> None:
        for item in items:
            committer(self.filesystem, self.publishers).commit(item)

    def idles(self, duration: str, code: str | None = "INVALID_PRODUCER_ID_MAPPING") -> None:
        """The broker forgets the marker, and the transactional id too unless another error is given."""
        self.clock.advance(duration)
        self.broker.markers.clear()
        if code is not None:
            self.broker.fails(Step.MARK, code)


def test_a_marker_that_expired_while_the_machine_was_suspended_is_made_anew(broker, filesystem):
    run = Run(broker, filesystem)
    run.idles("0 seconds")
    run.clock._began += 9 * 24 * 3600 * 1_000_000  # the monotonic clock stands still meanwhile
    run.commit(*run.prepare(5, b"a").materialise())
    assert (values(broker), broker.markers["shop-0"]) == ([b"a"], Marker(LOG, 6))


@pytest.mark.parametrize("code", ["INVALID_PRODUCER_ID_MAPPING", "_FENCED", None])
def test_a_run_whose_marker_expired_while_it_had_no_output_goes_on(broker, filesystem, code):
    run = Run(broker, filesystem)
    run.commit(*run.prepare(5, b"a").materialise())
    run.idles("9 days", code)
    (item,) = run.prepare(6, b"b").materialise()
    assert broker.markers == {"shop-0": Marker(LOG, 6)}, "it is there before the manifest (rule S5)"
    committer(filesystem, broker.publishers()).check_committable(item)
    run.commit(item)
    run.commit(item)
    assert (values(broker), broker.markers["shop-0"]) == ([b"a", b"b"], Marker(LOG, 7))


def test_a_marker_is_not_made_anew_while_output_is_open(broker, filesystem):
    run = Run(broker, filesystem)
    items = run.prepare(5, b"a").materialise()
    broker.fails(Step.COMMIT, "_TRANSPORT", applied=True)
    with pytest.raises(CommitFailed):
        run.commit(*items)
    run.idles("9 days", None)
    run.prepare(6).materialise()
    assert broker.markers == {}
    with pytest.raises(SinkIdentityConflict, match="cannot be told"):
        run.commit(*items)
    assert values(broker) == [b"a"]


def discarding(broker, filesystem, **more):
    """A run whose marker was lost while output was open, which a decision has discarded."""
    run = Run(broker, filesystem, on_lost_marker="discard", **more)
    (item,) = run.prepare(5, b"a").materialise()
    broker.markers.clear()
    broker.fails(Step.MARK, "_FENCED")
    with pytest.raises(CommitFailed):
        run.commit(item)
    run.commit(item)
    assert (values(broker), broker.markers["shop-0"]) == ([], Marker(LOG, 6, doubtful=True))
    return run


def test_a_decision_to_discard_does_not_count_for_output_that_comes_later(broker, filesystem):
    run = discarding(broker, filesystem)
    run.commit(*run.prepare(6, b"b").materialise())
    assert (values(broker), broker.markers["shop-0"]) == ([b"b"], Marker(LOG, 7))


def test_a_decision_to_discard_counts_for_output_that_was_open_too(broker, filesystem):
    run = Run(broker, filesystem, on_lost_marker="discard")
    items = [*run.prepare(5, b"a").materialise(), *run.prepare(6, b"b").materialise()]
    broker.markers.clear()
    broker.fails(Step.MARK, "_FENCED")
    with pytest.raises(CommitFailed):
        run.commit(items[0])
    run.commit(items[0])
    late = run.prepare(7, b"c").materialise()
    run.commit(items[1], *late)
    assert (values(broker), broker.markers["shop-0"]) == ([], Marker(LOG, 8, doubtful=True))
    run.commit(*run.prepare(8, b"d").materialise())
    assert (values(broker), broker.markers["shop-0"]) == ([b"d"], Marker(LOG, 9))


def test_no_output_is_opened_while_a_marker_is_in_doubt_for_nothing(broker, filesystem):
    run = discarding(broker, filesystem)
    broker.fails(Step.MARK, "_TRANSPORT", times=99)
    with pytest.raises(SinkUnavailable, match="could not be written for over an hour, or since it was lost"):
        run.prepare(6, b"b").materialise()


def test_a_superseded_driver_does_not_end_a_doubt(broker, filesystem):
    is_fenced = False

    def check() -> None:
        if is_fenced:
            msg = "Another process owns the log."
            raise GenerationFenced(msg)

    run = discarding(broker, filesystem, check_owner=check)
    is_fenced = True
    with pytest.raises(GenerationFenced):
        run.prepare(6, b"b").materialise()
    assert broker.markers["shop-0"].doubtful


def test_a_superseded_driver_does_not_make_a_marker_anew(broker, filesystem):
    def fenced() -> None:
        msg = "Another process owns the log."
        raise GenerationFenced(msg)

    run = Run(broker, filesystem, check_owner=fenced)
    run.idles("9 days")
    with pytest.raises(GenerationFenced):
        run.prepare(5, b"a").materialise()
    assert broker.markers == {}


def test_a_run_whose_marker_another_log_has_written_opens_no_output(broker, filesystem):
    run = Run(broker, filesystem)
    run.idles("9 days", "_FENCED")
    broker.markers["shop-0"] = other = Marker("fedcba9876543210", 3)
    with pytest.raises(SinkIdentityConflict, match="written by another log"):
        run.prepare(5, b"a").materialise()
    assert broker.markers == {"shop-0": other}


def test_no_output_is_opened_while_the_marker_may_be_lost(broker, filesystem, caplog):
    run = Run(broker, filesystem)
    run.clock.advance("61 minutes")
    broker.fails(Step.MARK, "_TRANSPORT", times=99)
    with pytest.raises(SinkUnavailable, match="transactional id 'shop-0' could not be written for over an hour"):
        run.prepare(5, b"a").materialise()
    assert "said so" in caplog.text, "the warning has the reason"
    assert run.writer.prepare(CheckpointId(6)).epoch, "the rows are in the next checkpoint"
    assert run.prepare(7).materialise() == (), "one without output needs no marker"
    broker.failures.clear()
    run.commit(*run.prepare(8, b"b").materialise())
    assert values(broker) == [b"b"]


def test_a_cluster_that_is_away_for_some_minutes_or_while_output_is_open_fails_no_checkpoint(broker, filesystem):
    run = Run(broker, filesystem)
    run.clock.advance("59 minutes")
    broker.fails(Step.MARK, "_TRANSPORT", times=99)
    items = [*run.prepare(5, b"a").materialise()]
    run.clock.advance("2 hours")
    items += run.prepare(6, b"b").materialise()
    broker.failures.clear()
    run.commit(*items)
    assert values(broker) == [b"a", b"b"]


def test_a_cluster_that_is_away_when_a_run_begins_is_waited_for(broker):
    publisher = broker.publishers().acquire(IDENTITY)
    for code, said in (("_TIMED_OUT", "See that a broker runs there"), ("_FENCED", "The start begins again.")):
        broker.fails(Step.FENCE, code)
        with pytest.raises(SinkUnavailable, match=said):
            take_identity(publisher, uid="out", next_checkpoint=1, check_owner=lambda: None)
    take_identity(publisher, uid="out", next_checkpoint=1, check_owner=lambda: None)


def test_an_identity_is_kept_in_a_committable_with_references_to_secrets():
    options = {"sasl.password": env("KAFKA_PASSWORD"), "ssl.key.password": file("/run/key"), "linger.ms": 3}
    identity = replace(IDENTITY, connection=Connection(servers="k:9092", options=options), on_lost_marker="publish")
    item = Committable(
        uid="out", kind="kafka/1", checkpoint=CheckpointId(1), target="t", files=(), detail=identity.to_json()
    )
    assert Identity.of(item) == identity


ANSWER = b"".join(
    [
        struct.pack(">ih", 1, 0),
        bytes([3]) + struct.pack(">hhh", 0, 0, 9) + b"\0" + struct.pack(">hhh", 18, 0, 4) + b"\0",  # two requests
        struct.pack(">i", 0),
        bytes([2]),
        bytes([0, 1, 1]),  # no supported features
        bytes([2, 45, 3]),
        bytes([14]) + b"group.version" + struct.pack(">hh", 1, 1) + b"\0",
        bytes([20]) + b"transaction.version" + struct.pack(">hh", 2, 2) + b"\0",
    ]
)


def test_a_brokers_answer_has_the_version_of_its_transactions():
    assert parse_transaction_version(ANSWER) == 2
    assert parse_transaction_version(ANSWER.replace(b"transaction.version", b"transaction.versiom")) == 0
    assert parse_transaction_version(struct.pack(">ih", 1, 35)) == 0, "it knows no features"
    for wrong in (ANSWER[:-3], ANSWER[:9], struct.pack(">ih", 1, 42)):
        with pytest.raises(ValueError, match=r"too short|error 42"):
            parse_transaction_version(wrong)
    assert transaction_version(Connection(servers="localhost:1", options={})) is None


def test_brokers_with_old_transactions_are_refused_unless_that_is_accepted(broker, monkeypatch, caplog):
    place = {"servers": "k:9092", "topic": "counts", "transactional_id_prefix": "shop"}
    monkeypatch.setattr(transactions.PUBLISHERS, "look", broker.look)
    monkeypatch.setattr(transactions.PUBLISHERS, "version", lambda _: 1)
    with pytest.raises(ConnectorError, match=r"has transaction.version 1\. Below 2") as refused:
        ps.kafka.Sink(**place).check_log(LOG, "out")
    assert refused.value.retry is False
    ps.kafka.Sink(**place, least_transaction_version=1).check_log(LOG, "out")
    with pytest.raises(GraphError, match="least_transaction_version is 3"):
        ps.kafka.Sink(**place, least_transaction_version=3)
    monkeypatch.setattr(transactions.PUBLISHERS, "version", lambda _: None)
    ps.kafka.Sink(**place).check_log(LOG, "out")
    assert "no broker of k:9092 tells its transaction.version" in caplog.text


# ---- what users say --------------------------------------------------------------------------------------------------


def test_exactly_once_needs_a_prefix_and_a_prefix_exactly_once():
    place = {"servers": "k:9092", "topic": "counts"}
    with pytest.raises(GraphError, match="Exactly-once needs transactional_id_prefix"):
        ps.kafka.Sink(**place)
    with pytest.raises(GraphError, match="Leave it out, or take guarantee='exactly-once'"):
        ps.kafka.Sink(**place, guarantee="none", transactional_id_prefix="shop")
    with pytest.raises(GraphError, match="transactional_id_prefix='a b' is no name"):
        ps.kafka.Sink(**place, transactional_id_prefix="a b")
    for wrong in ("guess", True, -1):
        with pytest.raises(GraphError, match=f"on_lost_marker is {wrong!r}, .* or the number of the last checkpoint"):
            ps.kafka.Sink(**place, transactional_id_prefix="shop", on_lost_marker=wrong)


def test_two_sinks_with_one_prefix_are_refused_151():
    def pipeline(*prefixes: str) -> ps.Pipeline:
        p = ps.Pipeline("shop")
        rows = p.read("numbers", ps.rate.Source(rows_per_second=1))
        for number, prefix in enumerate(prefixes):
            place = {"servers": "k:9092", "topic": f"t{number}"}
            rows.write(f"out-{number}", ps.kafka.Sink(**place, transactional_id_prefix=prefix))
        return p

    assert isinstance(ps.kafka.Sink(servers="k:9092", topic="t", transactional_id_prefix="a"), HasIdentity)
    validate(pipeline("a", "b").graph())
    with pytest.raises(GraphError, match="'out-0' and 'out-1' both have transactional_id_prefix='a'"):
        validate(pipeline("a", "a").graph())
