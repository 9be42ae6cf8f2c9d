"""Exactly-once output to Kafka: the records of an epoch and its marker, in one transaction.

The marker is the offset that a consumer group, named like the transactional id, has committed: all epochs below it are
published or void. Its metadata has the id of the log. The client is handed in; what it imports is not known here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, TypeAlias, TypeVar

from penstock.clock import SystemClock
from penstock.connectors.kafka.identity import Identity, Marker, Verdict, fits_run, foreign, judge, lost, younger
from penstock.connectors.kafka.producer import ClientFailure, is_lasting, sink_error
from penstock.connectors.kafka.records import OutputRecord, read_records
from penstock.connectors.staging import require_staged, staged_tables
from penstock.errors import CommitFailed, ConnectorError, PenstockError, SinkUnavailable
from penstock.failpoints import failpoint
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CommitOutcome, output_names
from penstock.interfaces.sink import CommitContext
from penstock.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.clock import Clock, MonotonicTime, WallTime
    from penstock.filesystem.base import FileSystem
    from penstock.handles import Committable

log = logging.getLogger("penstock")
T = TypeVar("T")

KIND: Final = "kafka/1"
"""Kind of the committables."""

# ---- the client, and what its errors mean ----------------------------------------------------------------------------


class Step(Enum):
    """The calls of a publication, in their order."""

    FENCE = "fence"
    """Initialise transactions: no earlier producer of this id can commit any more."""
    READ = "read the marker"
    BEGIN = "begin"
    PRODUCE = "produce"
    MARK = "mark"
    COMMIT = "commit"


class TransactionalClient(Protocol):
    """One producer of one transactional id, and the reader of its marker. Each call may raise ``ClientFailure``."""

    def fence(self) -> None:
        """Take the id from every earlier producer, and end what they left open."""
        ...

    def marker(self) -> Marker | None:
        """The committed marker; ``None`` if there is none."""
        ...

    def begin(self) -> None:
        """Begin a transaction."""
        ...

    def produce(self, records: Iterable[OutputRecord]) -> None:
        """Add records to the transaction."""
        ...

    def mark(self, marker: Marker) -> None:
        """Add the marker to the transaction."""
        ...

    def commit(self) -> None:
        """Commit the transaction: all of it or nothing."""
        ...

    def close(self) -> None:
        """Throw the producer away. What it has open is aborted, now or by the next fence."""
        ...


class Reaction(Enum):
    """What follows from a failure."""

    REPEAT = "the same call again"
    BEGIN_AGAIN = "another producer, from the fence on"
    LOOK_AT_LOG = "the same, once the log says that the job is still ours"
    GIVE_UP = "only somebody can mend it"


_FENCED: Final = frozenset({"_FENCED", "FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"})
"""Another producer has the id, or the transaction took longer than its time-out: the broker answers both alike."""
_TAKEN: Final = "Another producer took this transactional id, or a transaction took longer than transaction.timeout.ms."
_MOST_REPEATS: Final = 5


def reaction(step: Step, failure: ClientFailure, *, repeats: int = 0) -> Reaction:
    """The reaction to a failure of a step that was repeated so often already.

    Only what the client calls retriable is repeated; a part of an epoch that may have been handed over is not. After
    anything else the producer is not used again: what it did is found out at the fence.

    >>> reaction(Step.COMMIT, ClientFailure("_TIMED_OUT", "", retriable=True))
    <Reaction.REPEAT: 'the same call again'>
    """
    if failure.code in _FENCED:
        return Reaction.LOOK_AT_LOG
    if is_lasting(failure.code):
        return Reaction.GIVE_UP
    if failure.retriable and step is not Step.PRODUCE and repeats < _MOST_REPEATS:
        return Reaction.REPEAT
    return Reaction.BEGIN_AGAIN


# ---- one identity in this process ------------------------------------------------------------------------------------

RENEW_AFTER: Final = 600_000_000
"""Microseconds after which a checkpoint writes the marker again, so that it does not expire while the job runs."""
SURE_FOR: Final = 3_600_000_000
"""Microseconds for which a marker is surely there; brokers keep one for seven days by default."""


class Publisher:
    """The producer of one identity in this process, kept from epoch to epoch: to fence costs half a second.

    Args:
        identity: under which it publishes.
        connect: makes a client.
        clock: says when the marker was written last.

    Attributes:
        handed_over: the last checkpoint of the run for which there is output under this identity; -1 for none.
    """

    def __init__(self, identity: Identity, connect: Connect, clock: Clock) -> None:
        self.identity = identity
        self._connect = connect
        self._clock = clock
        self._client: TransactionalClient | None = None
        self._marker: Marker | None = None
        self._known: Marker | None = None
        self.handed_over = -1
        self._written: tuple[MonotonicTime, WallTime] | None = None
        self._was_fenced = False
        self._lock = threading.Lock()

    @contextmanager
    def producer(self, check_owner: Callable[[], None]) -> Iterator[Producing]:
        """Hold the producer: of this process only one call publishes at a time. Any error throws it away."""
        with self._held(check_owner):
            producing = Producing(self)
            if self._client is None:
                self._client = self._connect(self.identity)
                self._marker = self._take(self._client, producing)
                self._known = self._marker or self._known
            yield producing

    @contextmanager
    def lent(self, check_owner: Callable[[], None]) -> Iterator[None]:
        """Keep the identity from all others in this process, while a task in an executor takes it."""
        with self._held(check_owner):
            self.close()
            yield

    @contextmanager
    def _held(self, check_owner: Callable[[], None]) -> Iterator[None]:
        with self._lock:
            try:
                if self._was_fenced:
                    check_owner()
                self._was_fenced = False
                yield
            except BaseException as error:
                if isinstance(error, Failed) and error.reaction is Reaction.LOOK_AT_LOG:
                    self._was_fenced = True
                self.close()
                raise

    @staticmethod
    def _take(client: TransactionalClient, producing: Producing) -> Marker | None:
        """Fence first, then read (rule S3): a marker that was read before may be another's by now."""
        producing.do(Step.FENCE, client.fence)
        return producing.do(Step.READ, client.marker)

    @property
    def client(self) -> TransactionalClient:
        """The client that holds the identity now."""
        assert self._client is not None
        return self._client

    @property
    def marker(self) -> Marker | None:
        """The marker, as the holder of the identity knows it."""
        return self._marker

    def wrote(self, marker: Marker) -> None:
        """Note that the marker was committed."""
        self._marker = self._known = marker
        self._written = self._clock.now(), self._clock.wall()

    @property
    def known(self) -> Marker | None:
        """The newest marker that was read or written here. The broker may have forgotten it since."""
        return self._known

    @property
    def may_be_open(self) -> bool:
        """Whether output of the run is not known to be published or void."""
        return self._known is None or self._known.next <= self.handed_over

    @property
    def is_settled(self) -> bool:
        """Whether the marker is in doubt about output that is all decided: it would count for later output as well."""
        return self._known is not None and self._known.doubtful and not self.may_be_open

    @property
    def is_old(self) -> bool:
        """Whether the marker should be written again."""
        return self.is_settled or self.is_older(RENEW_AFTER)

    def is_older(self, age: int) -> bool:
        """Whether the marker was not written in the last ``age`` microseconds."""
        if self._written is None:
            return True
        at, wall = self._written
        # The monotonic clock may stand still while the machine is suspended.
        return max(self._clock.now() - at, self._clock.wall() - wall) >= age

    @property
    def is_connected(self) -> bool:
        """Whether there is a producer, which may have lost the identity since."""
        return self._client is not None

    def close(self) -> None:
        """Throw the producer away; the next call begins at the fence."""
        client, self._client, self._marker = self._client, None, None
        if client is not None:
            client.close()


class Failed(Exception):
    """A step failed for good; the producer is thrown away."""

    def __init__(self, step: Step, failure: ClientFailure, reaction: Reaction) -> None:
        super().__init__(step, failure, reaction)
        self.step = step
        self.failure = failure
        self.reaction = reaction

    def __str__(self) -> str:
        return str(self.failure)


class Producing:
    """A publication by the holder of an identity."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    @property
    def marker(self) -> Marker | None:
        """The marker, read behind the fence."""
        return self._publisher.marker

    def do(self, step: Step, call: Callable[[], T]) -> T:
        """Make a call, again where the client says so.

        Raises:
            Failed: it failed.
        """
        repeats = 0
        while True:
            try:
                return call()
            except ClientFailure as failure:
                found = reaction(step, failure, repeats=repeats)
                if found is not Reaction.REPEAT:
                    raise Failed(step, failure, found) from failure
                repeats += 1

    def publish(
        self,
        marker: Marker,
        records: Iterable[OutputRecord] = (),
        failpoint: Callable[[str], None] = lambda _name: None,
    ) -> None:
        """Commit the records and the marker in one transaction.

        Raises:
            Failed: it may have been committed or not: only the next fence and its marker tell.
        """
        client = self._publisher.client
        self.do(Step.BEGIN, client.begin)
        failpoint("sink.kafka.begun")
        self.do(Step.PRODUCE, lambda: client.produce(records))
        failpoint("sink.kafka.produced")
        self.do(Step.MARK, lambda: client.mark(marker))
        failpoint("sink.kafka.marked")
        self.do(Step.COMMIT, client.commit)
        failpoint("sink.kafka.committed")
        self._publisher.wrote(marker)


Connect: TypeAlias = "Callable[[Identity], TransactionalClient]"


def connect_to_cluster(identity: Identity) -> TransactionalClient:
    """A client of confluent-kafka's."""
    from penstock.connectors.kafka.transactional import KafkaTransactions

    return KafkaTransactions(identity.connection, identity.transactional_id, identity.topic)


def look_in_cluster(identity: Identity) -> Marker | None:
    """The marker of an identity as it is now, read without a fence."""
    from penstock.connectors.kafka.transactional import look_at_marker

    return look_at_marker(identity.connection, identity.transactional_id, identity.topic)


def version_of_cluster(identity: Identity) -> int | None:
    """The version of the cluster's transactions; ``None`` if it does not tell."""
    from penstock.connectors.kafka.features import transaction_version

    return transaction_version(identity.connection)


@dataclass(eq=False)
class Publishers:
    """The publishers of one process, by identity: a sink's writer and its committer use one.

    A publisher is kept as long as somebody uses it.
    """

    connect: Connect = connect_to_cluster
    look: Callable[[Identity], Marker | None] = look_in_cluster
    version: Callable[[Identity], int | None] = version_of_cluster
    clock: Clock = field(default_factory=SystemClock)
    _used: dict[tuple[str, str, str], tuple[Publisher, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acquire(self, identity: Identity) -> Publisher:
        """The publisher of an identity, to be released."""
        key = _key(identity)
        with self._lock:
            publisher, users = self._used.get(key) or (Publisher(identity, self.connect, self.clock), 0)
            self._used[key] = publisher, users + 1
        return publisher

    def release(self, publisher: Publisher) -> None:
        """Let go of it; the last user's producer is thrown away."""
        key = _key(publisher.identity)
        with self._lock:
            _, users = self._used[key]
            if users > 1:
                self._used[key] = publisher, users - 1
                return
            del self._used[key]
        publisher.close()


def _key(identity: Identity) -> tuple[str, str, str]:
    return identity.connection.servers, identity.transactional_id, identity.topic


PUBLISHERS: Final = Publishers()
"""Those of this process."""


# ---- at the start of a run -------------------------------------------------------------------------------------------


def take_identity(
    publisher: Publisher, *, uid: str, next_checkpoint: int | None, check_owner: Callable[[], None]
) -> None:
    """Fence every earlier producer, and write the marker: before the first manifest that needs it (rule S5).

    Nothing of the log is open when a run begins, so without a marker the log is the proof, and it is made anew.

    Raises:
        SinkIdentityConflict: another log has the identity, or a younger copy of this one.
        ConnectorError: the cluster refuses it, or cannot be reached.
    """
    identity = publisher.identity
    try:
        with publisher.producer(check_owner) as producing:
            marker = producing.marker
            if not fits_run(marker, log_id=identity.log_id, next_checkpoint=next_checkpoint):
                assert marker is not None
                if marker.log_id != identity.log_id:
                    raise foreign(marker, identity, uid)
                raise younger(marker, identity, uid, next_checkpoint)
            next = marker.next if marker is not None else next_checkpoint or 0
            producing.publish(Marker(identity.log_id, next))  # nothing is open, so it is in no doubt any more
            publisher.handed_over = -1
    except Failed as failed:
        raise _unavailable(failed, identity, uid) from failed


def refuse_another_log(identity: Identity, log_id: str | None, uid: str, publishers: Publishers = PUBLISHERS) -> None:
    """Refuse a start whose identity another log has, before anything is claimed (rule S4). Takes nothing from anyone.

    A cluster that cannot be reached now is no reason: the run finds out.

    Raises:
        SinkIdentityConflict: another log has it.
        ConnectorError: the cluster refuses to tell.
    """
    marker = _look(identity, uid, publishers)
    if marker is not None and marker.log_id != log_id:
        raise foreign(marker, identity, uid)


def refuse_old_transactions(version: int | None, identity: Identity, least: int, uid: str) -> None:
    """Refuse a cluster whose transactions are older than the sink takes; one that does not tell is only warned of.

    Raises:
        ConnectorError: they are.
    """
    if version is None:
        log.warning("sink %s: no broker of %s tells its transaction.version", uid, identity.connection.servers)
    elif version < least:
        msg = (
            f"Kafka at {identity.connection.servers} has transaction.version {version}. Below 2 a request of an "
            "aborted transaction that arrives late can become a part of the next one (KIP-890), so rows could be there "
            "twice. Upgrade the feature transaction.version to 2 with kafka-features.sh (from Kafka 4.0 on), or accept "
            f"that with least_transaction_version={version}."
        )
        raise ConnectorError(msg, uid=uid)


def _look(identity: Identity, uid: str, publishers: Publishers) -> Marker | None:
    try:
        return publishers.look(identity)
    except ClientFailure as failure:
        failed = Failed(Step.READ, failure, reaction(Step.READ, failure))
        if failed.reaction is Reaction.GIVE_UP:
            raise _unavailable(failed, identity, uid) from failure
        return None


def renew(publisher: Publisher, check_owner: Callable[[], None], uid: str = "") -> bool:
    """Write the marker again if it is old; whether it is young now.

    If nothing is open, one that is lost is made anew, and one in doubt loses it: the decision was about the output of
    then.

    Raises:
        SinkIdentityConflict: another log has written it.
        GenerationFenced: another process owns the job.
    """
    if not publisher.is_old:
        return True
    if publisher.is_connected and _write_again(publisher, check_owner, uid):
        return True
    # The broker may have forgotten the transactional id as well, which the first call of a producer finds out.
    return _write_again(publisher, check_owner, uid)


def _write_again(publisher: Publisher, check_owner: Callable[[], None], uid: str) -> bool:
    id = publisher.identity.transactional_id
    try:
        with publisher.producer(check_owner) as producing:
            marker = producing.marker
            if not publisher.may_be_open and (marker is None or marker.doubtful):
                # After the fence: a process that claims the job from here on takes the identity from this one.
                check_owner()
                marker = publisher.known if marker is None else marker
                marker = marker and replace(marker, doubtful=False)
            if marker is None:
                log.warning("transactional id %s: its marker is lost while output waits to be published", id)
                return False
            if marker.log_id != publisher.identity.log_id:
                raise foreign(marker, publisher.identity, uid)
            producing.publish(marker)
    except Failed as failed:
        log.warning("transactional id %s: its marker could not be written again: %s", id, failed)
        return False
    return True


def not_renewed(identity: Identity, uid: str) -> SinkUnavailable:
    """The error that a checkpoint would open output which no marker may tell of."""
    msg = (
        f"Kafka at {identity.connection.servers}: the marker of transactional id {identity.transactional_id!r} could "
        "not be written for over an hour, or since it was lost. Nothing could tell later whether the output of this "
        "checkpoint was published, so the checkpoint is given up. See that the brokers can be reached. Earlier "
        "warnings in the log of this process say what failed."
    )
    return SinkUnavailable(msg, uid=uid)


def _unavailable(failed: Failed, identity: Identity, uid: str) -> ConnectorError:
    what = f"transactional id {identity.transactional_id!r}"
    if failed.reaction is Reaction.LOOK_AT_LOG:
        msg = f"Kafka at {identity.connection.servers}, {what}: {_TAKEN} The start begins again."
        return SinkUnavailable(msg, uid=uid)
    error = sink_error(failed.failure.code, failed.failure.message, servers=identity.connection.servers, what=what)
    error.uid = uid
    return error


# ---- the committer ---------------------------------------------------------------------------------------------------


class KafkaCommitter:
    """Publishes and voids committables of kind ``kafka/1``: fence, read the marker, one transaction with both.

    Args:
        context: of the process.
        publishers: of the process.
    """

    def __init__(self, context: CommitContext, publishers: Publishers = PUBLISHERS) -> None:
        self._context = context
        self._publishers = publishers

    def commit(self, item: Committable) -> CommitOutcome:
        """Publish the staged records.

        Raises:
            CommitFailed: it is not known to be published; the next try begins at the fence.
            ConnectorError: somebody has to mend something first.
            SinkIdentityConflict: the marker is another log's, or is lost.
            CheckpointUnreadable: a staged file is gone, and the marker does not say that it was published.
        """
        identity = self._identity(item)
        if identity.shards > 1 and self._context.spark is not None:
            return self._commit_in_executor(item, identity, self._context.spark)
        with self._holding(item, identity) as publisher, publisher.producer(self._context.check_owner) as producing:
            return self._publish(item, identity, producing)

    def _commit_in_executor(self, item: Committable, identity: Identity, spark: SparkSession) -> CommitOutcome:
        """Publish in a job of one task, which reads the staged files itself.

        A second attempt of the task, after the loss of an executor or beside a slow one, fences the first and reads
        its marker. So it does not matter how often Spark runs it.
        """
        context = self._context
        root = context.filesystem.url("").removeprefix("file://")
        with self._holding(item, identity) as publisher, publisher.lent(context.check_owner), context.jobs(item.uid):
            try:
                task = spark.sparkContext.parallelize([LocalFileSystem(root)], 1)
                (answer,) = task.map(lambda files: publish_in_task(item, identity, files)).collect()
            except Exception as error:
                if not jvm.is_spark_error(error):
                    raise
                msg = f"The task that publishes {output_names(item)} to {item.target} ended without an answer: {error}"
                raise CommitFailed(msg, uid=item.uid) from error
            if isinstance(answer, Exception):
                raise answer
            # It may have been discarded, or settled before: whether the marker is in doubt is not known then.
            is_doubtful = answer is CommitOutcome.ALREADY_DONE
            publisher.wrote(Marker(identity.log_id, item.checkpoint + 1, doubtful=is_doubtful))
            return answer

    def publish_alone(self, item: Committable, identity: Identity) -> CommitOutcome:
        """Publish the staged records of a shard in a process that does nothing else under its identity.

        Raises:
            Failed: they are not known to be published.
            PenstockError: as ``commit``.
        """
        publisher = self._publishers.acquire(identity)
        try:
            with publisher.producer(self._context.check_owner) as producing:
                return self._publish(item, identity, producing)
        finally:
            self._publishers.release(publisher)

    def _publish(self, item: Committable, identity: Identity, producing: Producing) -> CommitOutcome:
        verdict = judge(producing.marker, log_id=identity.log_id, checkpoint=item.checkpoint)
        if verdict is Verdict.SETTLED:
            return CommitOutcome.ALREADY_DONE
        settled = Marker(identity.log_id, item.checkpoint + 1)
        if verdict is Verdict.FOREIGN:
            assert producing.marker is not None
            raise foreign(producing.marker, identity, item.uid)
        if verdict is Verdict.UNKNOWN:
            decided = identity.without_marker(item.checkpoint)
            if decided == "fail":
                raise lost(item, identity)
            if decided == "discard":
                # later output may be in the topic as well: a marker without doubt would publish it again
                producing.publish(replace(settled, doubtful=True), failpoint=self._context.failpoint)
                return CommitOutcome.ALREADY_DONE
        require_staged(item, self._context.filesystem)
        producing.publish(settled, self._records(item, identity.topic), self._context.failpoint)
        return CommitOutcome.DONE

    def check_committable(self, item: Committable) -> None:
        """Refuse what a commit would refuse, as far as it can be seen without a fence.

        Raises:
            SinkIdentityConflict: the marker is another log's, or is lost.
            CheckpointUnreadable: a staged file is gone, and the marker does not say that it was published.
            ConnectorError: the cluster refuses to tell.
        """
        identity = self._identity(item)
        try:
            marker = self._publishers.look(identity)
        except ClientFailure:
            return  # the commit finds out, and says what is to be mended
        verdict = judge(marker, log_id=identity.log_id, checkpoint=item.checkpoint)
        if verdict is Verdict.FOREIGN:
            assert marker is not None
            raise foreign(marker, identity, item.uid)
        if verdict is Verdict.UNKNOWN and identity.without_marker(item.checkpoint) == "fail":
            raise lost(item, identity)
        if verdict is Verdict.OPEN:
            require_staged(item, self._context.filesystem)

    def is_published(self, item: Committable) -> bool:
        """Whether the marker says that the output was published, or is void; not without an answer of the cluster."""
        identity = self._identity(item)
        try:
            marker = self._publishers.look(identity)
        except (ClientFailure, PenstockError):
            return False
        return judge(marker, log_id=identity.log_id, checkpoint=item.checkpoint) is Verdict.SETTLED

    def void(self, item: Committable) -> CommitOutcome:
        """Commit the marker alone, so that no later commit publishes. ``ALREADY_DONE``: it was settled before.

        Raises:
            CommitFailed: it is not known to be void; the next try begins at the fence.
            ConnectorError: somebody has to mend something first.
        """
        identity = self._identity(item)
        with self._holding(item, identity) as publisher, publisher.producer(self._context.check_owner) as producing:
            verdict = judge(producing.marker, log_id=identity.log_id, checkpoint=item.checkpoint)
            if verdict is Verdict.SETTLED:
                return CommitOutcome.ALREADY_DONE
            if verdict is not Verdict.FOREIGN:  # beside a foreign marker no commit publishes either
                void = Marker(identity.log_id, item.checkpoint + 1, doubtful=verdict is Verdict.UNKNOWN)
                producing.publish(void, failpoint=self._context.failpoint)
        return CommitOutcome.DONE

    def _identity(self, item: Committable) -> Identity:
        """The identity of a committable, with the connection that the sink has now, if it still has that identity."""
        identity = Identity.of(item)
        sink = self._context.sinks.get(item.uid)
        now = getattr(sink, "identities_in", None)
        current: Sequence[Identity] = now(identity.log_id) if now is not None else ()
        for each in current:
            if (each.transactional_id, each.topic) == (identity.transactional_id, identity.topic):
                return each
        return identity

    @contextmanager
    def _holding(self, item: Committable, identity: Identity) -> Iterator[Publisher]:
        publisher = self._publishers.acquire(identity)
        try:
            yield publisher
        except Failed as failed:
            _raise(failed, item, identity)
        finally:
            self._publishers.release(publisher)

    def _records(self, item: Committable, topic: str) -> Iterator[OutputRecord]:
        for table in staged_tables(item, self._context.filesystem):
            yield from read_records(table, topic)


def _raise(failed: Failed, item: Committable, identity: Identity) -> NoReturn:
    if failed.reaction is Reaction.GIVE_UP:
        raise _unavailable(failed, identity, item.uid) from failed
    why = f"{_TAKEN} " if failed.reaction is Reaction.LOOK_AT_LOG else ""
    msg = (
        f"{output_names(item)} is not known to be published to {item.target}. To {failed.step.value} failed ("
        f"{failed.failure}). {why}It is tried again from the fence on."
    )
    raise CommitFailed(msg, uid=item.uid) from failed


def publish_in_task(
    item: Committable, identity: Identity, filesystem: FileSystem, publishers: Publishers | None = None
) -> CommitOutcome | Exception:
    """The outcome, or the error: a task that raised would be run again by Spark, before the driver looks at the log."""
    context = CommitContext(filesystem=filesystem, failpoint=failpoint)
    try:
        return KafkaCommitter(context, publishers or Publishers()).publish_alone(item, identity)
    except (Failed, PenstockError) as error:
        return error
