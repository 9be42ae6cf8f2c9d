"""``ps.kafka.Sink``: rows as records of a topic."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from penstock.connectors.committers import COMMITTERS
from penstock.connectors.kafka.client import Connection
from penstock.connectors.kafka.config import (
    OF_SINKS,
    check_choice,
    check_options,
    check_prefix,
    check_shards,
    check_topic,
    parse_servers,
)
from penstock.connectors.kafka.identity import Identity, OnLostMarker
from penstock.connectors.kafka.producer import KafkaDeliveries
from penstock.connectors.kafka.records import RecordFormat, RecordParts
from penstock.connectors.kafka.transactions import (
    KIND,
    PUBLISHERS,
    SURE_FOR,
    Publisher,
    Publishers,
    not_renewed,
    refuse_another_log,
    refuse_old_transactions,
    renew,
    take_identity,
)
from penstock.connectors.staging import NoOutput, StagedWriter
from penstock.errors import ConnectorError, GraphError
from penstock.handles import Guarantee

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.connectors.epochs import EpochPart
    from penstock.connectors.kafka.producer import Deliveries
    from penstock.connectors.secrets import Option
    from penstock.elements import Batch
    from penstock.handles import CheckpointId, Committable
    from penstock.interfaces.sink import PreparedOutput, SinkContext, SinkWriter

log = logging.getLogger("penstock")

GuaranteeOption: TypeAlias = Literal["exactly-once", "at-least-once", "none"]


# ---- writing at once -------------------------------------------------------------------------------------------------


class DirectWriter:
    """Produces each batch as it comes, in the driver.

    Args:
        columns: what makes records of rows.
        producer: delivers them.
        waits: for all deliveries at a checkpoint, so that a checkpoint that is complete has them (at-least-once).
    """

    def __init__(self, columns: RecordParts, producer: Deliveries, *, uid: str, waits: bool) -> None:
        self._columns = columns
        self._producer = producer
        self._uid = uid
        self._waits = waits
        self._closed = False

    def write(self, batch: Batch) -> int:
        """Bring the records into the driver in one job, and hand them to the producer.

        Raises:
            ConnectorError: a record of this or an earlier batch was not delivered.
        """
        table = self._columns.records(cast("DataFrame", batch.frame)).toArrow()
        batch.settle()
        try:
            self._producer.send(self._columns.read(table))
        except ConnectorError as error:
            error.uid = self._uid
            raise
        return int(table.num_rows)

    def prepare(self, checkpoint: CheckpointId) -> PreparedOutput:  # noqa: ARG002 - as for any writer
        """The deliveries of the epoch, which are waited for in the background."""
        return DeliveredOutput(self._producer, self._uid) if self._waits else NoOutput()

    def close(self) -> None:
        """Let go of the producer. Without waiting at checkpoints: once the rest is delivered."""
        if self._closed:
            return
        self._closed = True
        if not self._waits:
            try:
                self._producer.flush()
            except ConnectorError as error:
                log.warning("sink %s: the last records were not delivered: %s", self._uid, error)
        self._producer.close()


@dataclass(frozen=True, slots=True)
class DeliveredOutput:
    """An epoch that is durable once the broker has acknowledged each record."""

    producer: Deliveries
    uid: str

    def materialise(self) -> Sequence[Committable]:
        """Wait for the deliveries. After a failure each later epoch fails too: the job begins at its checkpoint.

        Raises:
            ConnectorError: a record was not delivered.
        """
        try:
            self.producer.flush()
        except ConnectorError as error:
            error.uid = self.uid
            raise
        return ()


# ---- writing in transactions -----------------------------------------------------------------------------------------


class TransactionWriter(StagedWriter):
    """Stages records until the checkpoint is in the log; the committer publishes them.

    It holds the identity of each shard for the run: no other process can publish under it unless it takes it away.
    """

    def __init__(
        self, columns: RecordParts, context: SinkContext, identities: Sequence[Identity], publishers: Publishers
    ) -> None:
        target = f"kafka {identities[0].topic} at {identities[0].connection.servers}"
        super().__init__(context, kind=KIND, target=target, details=[each.to_json() for each in identities])
        self._columns = columns
        self._shards = len(identities)
        self._publishers = publishers
        self._held: list[Publisher] = [publishers.acquire(each) for each in identities]
        try:
            with ThreadPoolExecutor(len(self._held), thread_name_prefix="penstock-fence") as threads:
                list(threads.map(self._take, self._held))  # a fence takes half a second
        except BaseException:
            self.close()
            raise

    def _take(self, publisher: Publisher) -> None:
        context = self.context
        take_identity(
            publisher, uid=self._uid, next_checkpoint=context.next_checkpoint, check_owner=context.check_owner
        )

    def frame(self, batch: Batch) -> DataFrame:
        """The records of a batch, each with its shard if there are several."""
        records = self._columns.records(cast("DataFrame", batch.frame))
        return self._columns.in_shards(records, self._shards) if self._shards > 1 else records

    def materialise(self, checkpoint: CheckpointId, epoch: Sequence[EpochPart]) -> Sequence[Committable]:
        """Make the epoch durable. Write markers again that are old, also for an epoch without rows."""
        if not epoch:
            self._renew()
        return super().materialise(checkpoint, epoch)

    def committables(self, checkpoint: CheckpointId, epoch: Sequence[EpochPart]) -> Sequence[Committable]:
        """A committable for each shard, of which a marker tells (rule S5).

        Raises:
            SinkUnavailable: a marker may be lost, and nothing is open yet that needs it.
            SinkIdentityConflict: another log has written a marker.
        """
        for publisher in self._renew():
            if publisher.is_settled or (not publisher.may_be_open and publisher.is_older(SURE_FOR)):
                raise not_renewed(publisher.identity, self._uid)
        held = self._held
        items = super().committables(checkpoint, epoch)
        if held:  # else the writer is closed
            for item in items:
                held[item.shard].handed_over = checkpoint
        return items

    def _renew(self) -> list[Publisher]:
        """Write old markers again; returns the publishers of those that could not be written."""
        return [each for each in self._held if not renew(each, self.context.check_owner, self._uid)]

    @property
    def _uid(self) -> str:
        return self.context.uid

    def close(self) -> None:
        """Let go of the identities and the blocks."""
        super().close()
        held, self._held = self._held, []
        for publisher in held:
            self._publishers.release(publisher)


# ---- the sink --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, init=False)
class Sink:
    """Rows as records of a topic of a Kafka cluster.

    A change stream (``emit="updates"``) is written in its upsert form: of each key the newest value, and a record
    without a value (a tombstone) for what is deleted. It needs ``key``, the columns that identify a result.

    Args:
        servers: ``"host:port"``, several with commas or as a list.
        topic: the topic, which must exist.
        transactional_id_prefix: names the sink to the cluster, for ``"exactly-once"``. No other sink of this or another
            job may have it, and it must stay the same: the broker remembers under it what was published, in a consumer
            group for each shard.
        shards: how many producers publish a checkpoint's output. One is in the driver. Several are in executors, and a
            reader may see one's part before another's; records of one key go through one of them, in their order.
        guarantee: ``"exactly-once"``: the output of a checkpoint appears at once, when the checkpoint is complete, to
            readers with ``isolation.level=read_committed``; ``"at-least-once"``: a checkpoint is complete when all
            records before it are in Kafka, and a restart writes those after it again; ``"none"``: deliveries are not
            waited for.
        key: the columns of the key. One alone is written as its text or bytes, several as a JSON object. Without a
            key, or with ``NULL``, any partition is taken.
        format: ``"json"``: the value is a JSON object; fields that are ``NULL`` are left out, as Spark does.
            ``"raw"``: the value is one ``BINARY`` or ``STRING`` column.
        value: columns of the value. For JSON by default all but ``headers``, ``partition`` and ``topic_column``; for
            raw values ``"value"``.
        headers: a column ``MAP<STRING, STRING>``, or ``ARRAY<STRUCT<key STRING, value BINARY>>`` as a source has it.
        timestamp: a ``TIMESTAMP`` column; without it, or with ``NULL``, records get the time at which they are sent.
        partition: an ``INT`` column; ``NULL`` leaves the choice to the key.
        topic_column: a ``STRING`` column with the topic of each row; ``NULL`` is ``topic``.
        on_lost_marker: what to do with output that waits to be published, if the broker no longer remembers what was:
            ``"fail"``, ``"publish"`` (it may be there twice) or ``"discard"`` (it may be missing). If only the first
            of it is there, the number of the last checkpoint that is: what is above it is published.
        least_transaction_version: exactly-once is refused on brokers with a lower ``transaction.version``. Below 2 an
            aborted epoch may leave records in the next transaction (KIP-890).
        options: properties of the client library (librdkafka), such as ``compression.type``. Secrets are referred to,
            as for a source: ``{"sasl.password": ps.kafka.env("KAFKA_PASSWORD")}``.

    Raises:
        GraphError: an argument is impossible, or holds a secret.

    >>> Sink(servers="localhost:9092", topic="counts", transactional_id_prefix="shop-counts").describe()
    'kafka counts at localhost:9092'
    """

    servers: str
    topic: str
    guarantee: Guarantee
    columns: RecordParts
    transactional_id_prefix: str | None
    shards: int
    on_lost_marker: OnLostMarker
    least_transaction_version: int
    options: Mapping[str, Option] = field(repr=False)

    def __init__(  # noqa: PLR0913 - the arguments of a Kafka sink
        self,
        *,
        servers: str | Sequence[str],
        topic: str,
        transactional_id_prefix: str | None = None,
        shards: int = 1,
        guarantee: GuaranteeOption = "exactly-once",
        key: str | Sequence[str] = (),
        format: RecordFormat = "json",
        value: str | Sequence[str] = (),
        headers: str | None = None,
        timestamp: str | None = None,
        partition: str | None = None,
        topic_column: str | None = None,
        on_lost_marker: OnLostMarker = "fail",
        least_transaction_version: Literal[0, 1, 2] = 2,
        options: Mapping[str, object] | None = None,
    ) -> None:
        check_choice("guarantee", guarantee, ("exactly-once", "at-least-once", "none"))
        is_number = isinstance(on_lost_marker, int) and not isinstance(on_lost_marker, bool)
        if not is_number or int(on_lost_marker) < 0:
            words, number = ("fail", "publish", "discard"), "the number of the last checkpoint whose output is there"
            check_choice("on_lost_marker", on_lost_marker, words, besides=f", or {number}")
        check_choice("least_transaction_version", least_transaction_version, (0, 1, 2))
        check_prefix(transactional_id_prefix, is_needed=guarantee == "exactly-once")
        check_choice("format", format, ("json", "raw"))
        check_shards(shards, has_transactions=guarantee == "exactly-once")
        check_topic(topic)
        columns = RecordParts(
            format=format,
            topic=topic,
            key=_names("key", key),
            value=_names("value", value) or (("value",) if format == "raw" else ()),
            headers=_name("headers", headers),
            timestamp=_name("timestamp", timestamp),
            partition=_name("partition", partition),
            topic_column=_name("topic_column", topic_column),
        )
        if format == "raw" and len(columns.value) > 1:
            msg = f"A raw value is one column, and value has {len(columns.value)}. Name one, or take format='json'."
            raise GraphError(msg)
        values: dict[str, object] = {
            "servers": parse_servers(servers),
            "topic": topic,
            "guarantee": Guarantee(guarantee),
            "columns": columns,
            "transactional_id_prefix": transactional_id_prefix,
            "shards": shards,
            "on_lost_marker": on_lost_marker,
            "least_transaction_version": least_transaction_version,
            "options": check_options(options or {}, OF_SINKS),
        }
        for name, checked in values.items():
            object.__setattr__(self, name, checked)

    @property
    def connection(self) -> Connection:
        """How clients of this sink reach the cluster."""
        return Connection(servers=self.servers, options=self.options)

    @property
    def identity(self) -> str | None:
        """The prefix, which no two sinks may have."""
        if self.transactional_id_prefix is None:
            return None
        return f"transactional_id_prefix={self.transactional_id_prefix!r}"

    def identities_in(self, log_id: str) -> Sequence[Identity]:
        """What each shard of this sink is to the cluster, for a job of that log; none without transactions."""
        if self.transactional_id_prefix is None:
            return ()
        return [
            Identity(
                connection=self.connection,
                transactional_id=f"{self.transactional_id_prefix}-{shard}",
                topic=self.topic,
                log_id=log_id,
                on_lost_marker=self.on_lost_marker,
                shards=self.shards,
            )
            for shard in range(self.shards)
        ]

    @property
    def committers(self) -> Mapping[str, str]:
        """Publishes an epoch and its marker in one transaction."""
        return {KIND: COMMITTERS[KIND]} if self.transactional_id_prefix is not None else {}

    @property
    def accepts_changes(self) -> bool:
        """Changes are written as upserts; ``check`` refuses them without a key."""
        return True

    def check(self, schema: StructType) -> None:
        """Refuse rows of which no records can be made.

        Raises:
            GraphError: names the column and the remedy.
        """
        self.columns.check(schema)

    def writer(self, context: SinkContext) -> SinkWriter:
        """A writer that produces at once, or that stages until checkpoints are in the log.

        Raises:
            SettingsError: the client library is missing.
            ConnectorError: a secret is not there, or an option is not one of librdkafka's; the cluster refuses the
                transactional id, or cannot be reached.
            SinkIdentityConflict: another job has this transactional id.
        """
        identities = self.identities_in(context.log_id)
        if identities:
            return TransactionWriter(self.columns, context, identities, PUBLISHERS)
        producer = KafkaDeliveries(self.connection, f"topic {self.topic!r}")
        waits = self.guarantee is not Guarantee.NONE
        return DirectWriter(self.columns, producer, uid=context.uid, waits=waits)

    def check_log(self, log_id: str | None, uid: str) -> None:
        """Check that the broker remembers no other job under this transactional id, and that transactions are safe.

        Raises:
            SinkIdentityConflict: it does.
            ConnectorError: the cluster refuses to tell, or its transactions are too old.
        """
        identities = self.identities_in(log_id or "")
        for identity in identities:
            refuse_another_log(identity, log_id, uid)
        if identities and self.least_transaction_version:
            version = PUBLISHERS.version(identities[0])
            refuse_old_transactions(version, identities[0], self.least_transaction_version, uid)

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:  # noqa: ARG002
        """Nothing is staged outside of the state directory."""
        return ()

    def describe(self) -> str:
        """Topic and servers, for people; none of the client's properties."""
        return f"kafka {self.topic} at {self.servers}"


def _name(argument: str, given: object) -> str | None:
    if given is not None and (not isinstance(given, str) or not given):
        msg = f"{argument}={given!r} is no name of a column. Write the name as text."
        raise GraphError(msg)
    return given


def _names(argument: str, given: object) -> tuple[str, ...]:
    """Names of columns: one as text, or several, each once."""
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else (None,)
    if not all(isinstance(name, str) and name for name in names):
        msg = f"{argument}={given!r} does not name columns. Write a name, or a list of names."
        raise GraphError(msg)
    if len(set(names)) != len(names):
        msg = f"{argument}={given!r} names a column twice. Name each once."
        raise GraphError(msg)
    return names
