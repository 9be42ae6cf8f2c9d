"""The configuration of a Kafka source, and the checks of the arguments that users give to sources and sinks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from penstock.clock import parse_duration
from penstock.connectors.kafka.client import Connection
from penstock.connectors.kafka.offsets import OffsetReset, Offsets, Start, Stop, TopicPartition
from penstock.connectors.secrets import EnvironmentSecret, FileSecret, Option, check_option
from penstock.errors import GraphError, sentence
from penstock.interfaces.source import DECODED_RECORD, ReadIn, ReadLimit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.formats.json_arrow import JsonDecoder

Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]
CommitOption: TypeAlias = Literal["on-checkpoints", "periodic", "disabled"]
OnLostOffsets: TypeAlias = Literal["fail", "continue"]

TOPIC_PARTITION: Final = "topic_partition"
"""The additional column of sources with several topics; a value is ``orders-3``."""


class CommitMode(str, Enum):
    """When offsets are committed to the group."""

    ON_CHECKPOINTS = "on-checkpoints"
    """The offsets of a checkpoint, once it is complete."""
    PERIODIC = "periodic"
    """The current position, at intervals. A restart may read records again whose offsets were committed."""
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class CommitChoice:
    """The commit mode in force, and a warning for the user, if there is one."""

    mode: CommitMode
    warning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StallTimeouts:
    """Microseconds that a partition may give no record, though some wait, before each action is taken."""

    warn: int
    reopen: int
    fail: int


@dataclass(frozen=True, slots=True)
class JsonColumn:
    """A column that is decoded while it is read: its name, the type of the decoded records, and their decoder."""

    name: str
    record: StructType
    decoder: JsonDecoder


@dataclass(frozen=True, init=False)
class KafkaConfig:
    """Which topics to read and how: the checked arguments of a Kafka ``Source``, which is its subclass.

    Arguments are described there. Durations are microseconds here.
    """

    servers: str
    topics: tuple[str, ...]
    pattern: str | None
    start: Start
    start_otherwise: OffsetReset
    stop: Stop | None
    group: str | None
    commit_choice: CommitChoice
    commit_interval: int
    isolation: Isolation
    on_lost_offsets: OnLostOffsets
    gone_after: int
    discover_every: int | None
    max_rows_per_batch: int | None
    max_bytes_per_batch: int | None
    read_in: ReadIn
    stall_timeouts: StallTimeouts
    options: Mapping[str, Option] = field(repr=False)
    json: JsonColumn | None
    needed_columns: frozenset[str] | None
    replay_end: Offsets | None

    @property
    def connection(self) -> Connection:
        """How clients of this source reach the cluster."""
        return Connection(
            servers=self.servers,
            options=self.options,
            group=self.group,
            committed_only=self.isolation == "read_committed",
        )

    @property
    def has_one_topic(self) -> bool:
        """Whether only one topic can ever be read, so that its number is enough to identify a partition."""
        return len(self.topics) == 1

    @property
    def partition_column(self) -> str:
        """The column that identifies the partition of a row: its number, or topic and number."""
        return "partition" if self.has_one_topic else TOPIC_PARTITION

    def partition_name(self, at: TopicPartition) -> str:
        """The value of ``partition_column`` for a partition, as text."""
        return str(at.partition) if self.has_one_topic else str(at)

    def subscribes(self, topic: str) -> bool:
        """Whether a topic of that name is read.

        >>> from penstock.connectors.kafka.source import Source
        >>> source = Source(servers="localhost:9092", pattern="orders[.].*")
        >>> source.subscribes("orders.eu"), source.subscribes("all.orders.eu"), source.subscribes("__consumer_offsets")
        (True, False, False)
        """
        if self.pattern is None:
            return topic in self.topics
        return not topic.startswith("__") and re.fullmatch(self.pattern, topic) is not None

    def limit_batch(self, limits: ReadLimit) -> ReadLimit:
        """The job's limits of a batch, lowered to those of this source."""
        return limits.lowered(rows=self.max_rows_per_batch, bytes=self.max_bytes_per_batch)

    def schema(self, spark: SparkSession) -> StructType:
        """The columns of a record."""
        from pyspark.sql import types as t

        del spark  # an argument of the protocol that is not needed here
        header = t.StructType().add("key", t.StringType()).add("value", t.BinaryType())
        columns = t.StructType().add("key", t.BinaryType()).add("value", t.BinaryType())
        columns.add("headers", t.ArrayType(header)).add("topic", t.StringType()).add("partition", t.IntegerType())
        columns.add("offset", t.LongType()).add("timestamp", t.TimestampType())
        if not self.has_one_topic:
            columns.add(TOPIC_PARTITION, t.StringType())
        return columns if self.json is None else columns.add(DECODED_RECORD, self.json.record)


# ---- checks of arguments ---------------------------------------------------------------------------------------------
# They raise ``GraphError`` for a value that is impossible.

_MOST_SHARDS: Final = 64
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SERVER: Final = re.compile(r"(?:\w+://)?(?:[\w.-]+|\[[0-9a-fA-F:.%]+\]):\d{1,5}")


def check_choice(name: str, value: object, choices: tuple[object, ...], *, besides: str = "") -> None:
    """Raise ``GraphError`` unless ``value`` is one of ``choices``; ``besides`` says what else is possible."""
    if value not in choices:
        msg = f"{name} is {value!r}, but must be one of {', '.join(repr(choice) for choice in choices)}{besides}."
        raise GraphError(msg)


def check_shards(shards: object, *, has_transactions: bool) -> None:
    """Raise ``GraphError`` unless ``shards`` is a number of producers that the guarantee can use."""
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= _MOST_SHARDS:
        msg = f"shards={shards!r} is not possible. Give a whole number from 1 to {_MOST_SHARDS}."
        raise GraphError(msg)
    if shards > 1 and not has_transactions:
        msg = f"shards={shards!r} is not possible: only exactly-once output has shards. Leave it out, or guarantee."
        raise GraphError(msg)


def parse_servers(servers: object) -> str:
    """``bootstrap.servers`` as librdkafka takes it: each ``host:port``, with commas between.

    No message shows text that may be a password.
    """
    names = servers.split(",") if isinstance(servers, str) else servers
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        msg = f"servers={servers!r} is not text. Write servers='host:9092', or a list of such texts."
        raise GraphError(msg)
    names = [name.strip() for name in names if name.strip()]
    if any("@" in name for name in names):  # not shown: there may be a password before the sign
        msg = (
            "Names of servers have no '@'. Write hosts and ports, and a user's name and password into options "
            "(sasl.username, sasl.password)."
        )
        raise GraphError(msg)
    wrong = [name for name in names if not _SERVER.fullmatch(name)]
    if wrong or not names:
        msg = f"servers={servers!r} has no host, or one without a port. Write 'kafka-1:9092,kafka-2:9092'."
        raise GraphError(msg)
    return ",".join(names)


def check_topic(topic: object, *, hint: str = "") -> None:
    """Raise ``GraphError`` unless ``topic`` can be the name of a topic; the message ends with the hint."""
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        msg = (
            f"Topic {topic!r} is not a possible name: Kafka takes 1 to 249 of the characters a-z, A-Z, 0-9, '.', "
            f"'_' and '-'.{hint}"
        )
        raise GraphError(msg)


def check_prefix(prefix: object, *, is_needed: bool) -> None:
    """Raise ``GraphError`` unless ``prefix`` can name a sink, and is there if and only if it is needed."""
    if is_needed and prefix is None:
        msg = (
            "Exactly-once needs transactional_id_prefix, under which the broker remembers what was published. Write a "
            "name that no other sink has, such as 'shop-counts', or take guarantee='at-least-once'."
        )
        raise GraphError(msg)
    if not is_needed and prefix is not None:
        msg = f"transactional_id_prefix={prefix!r} is for exactly-once. Leave it out, or take guarantee='exactly-once'."
        raise GraphError(msg)
    if prefix is not None and (not isinstance(prefix, str) or not _TOPIC.fullmatch(prefix)):
        msg = (
            f"transactional_id_prefix={prefix!r} is no name. Write 1 to 249 of the characters a-z, A-Z, 0-9, '.', "
            "'_' and '-'."
        )
        raise GraphError(msg)


def parse_topics(topics: object, pattern: object) -> tuple[str, ...]:
    """The names of the topics, sorted and each once; empty if there is a pattern."""
    if (topics is None) == (pattern is None):
        msg = (
            f"A source has topics={topics!r} and pattern={pattern!r}. Write one of them, as topics=['orders', …] or "
            "pattern='orders[.].*'."
        )
        raise GraphError(msg)
    if topics is None:
        try:
            re.compile(pattern)  # type: ignore[call-overload] # the user may have passed anything
        except (re.error, TypeError) as error:
            msg = f"pattern={pattern!r} is no regular expression: {sentence(error)}"
            raise GraphError(msg) from error
        return ()
    if isinstance(topics, str) or not isinstance(topics, Sequence) or not topics:
        msg = f"topics={topics!r} is no list of names. Write topics=['orders']."
        raise GraphError(msg)
    for topic in topics:
        check_topic(topic, hint=" For several topics at once write pattern=.")
    return tuple(sorted(set(topics)))


def parse_group(group: object, start: object) -> str | None:
    """The name of the consumer group, if there is one."""
    if group is None and start == "committed":
        msg = "start='committed' begins at the offsets of a consumer group. Name it with group='…'."
        raise GraphError(msg)
    if group is not None and (not isinstance(group, str) or not group.strip()):
        msg = f"group={group!r} is no name. Write the name of a consumer group."
        raise GraphError(msg)
    return group


def parse_stall_timeouts(warn: str, reopen: str, fail: str) -> StallTimeouts:
    """The time-outs of a stall in microseconds; each must be at least as long as the previous one."""
    timeouts = StallTimeouts(
        warn=parse_duration("warn_stalled_after", warn, least=1),
        reopen=parse_duration("reopen_stalled_after", reopen, least=1),
        fail=parse_duration("fail_stalled_after", fail, least=1),
    )
    if not timeouts.warn <= timeouts.reopen <= timeouts.fail:
        msg = (
            f"warn_stalled_after={warn!r}, reopen_stalled_after={reopen!r} and fail_stalled_after={fail!r} are not in "
            "this order. A stall is first reported, then answered with a new connection, then an error. Make none "
            "shorter than the previous one."
        )
        raise GraphError(msg)
    return timeouts


def choose_commit_mode(wanted: CommitMode | None, group: str | None) -> CommitChoice:
    """The commit mode in force: ``wanted``, by default on checkpoints; without a group always disabled.

    >>> choose_commit_mode(None, "shop"), choose_commit_mode(None, None)
    (CommitChoice(mode=<CommitMode.ON_CHECKPOINTS: 'on-checkpoints'>, warning=None), \
CommitChoice(mode=<CommitMode.DISABLED: 'disabled'>, warning=None))
    """
    if group is not None:
        return CommitChoice(wanted or CommitMode.ON_CHECKPOINTS)
    if wanted in (None, CommitMode.DISABLED):
        return CommitChoice(CommitMode.DISABLED)
    return CommitChoice(
        CommitMode.DISABLED,
        f"commit={wanted.value!r} without group=: no offsets are committed; name the group to commit them to",
    )


# ---- client properties -----------------------------------------------------------------------------------------------

_ASSIGNS_ITSELF: Final = "Leave it out, since penstock gives partitions to readers itself and joins no group"
_SETS_ITSELF: Final = "Leave it out, since penstock needs it as it sets it"
_OF_EACH_CLIENT: Final = {
    "bootstrap.servers": "Write servers= instead",
    "metadata.broker.list": "Write servers= instead",
    "sasl.jaas.config": "It is the Java client's. Write sasl.mechanism, sasl.username and sasl.password",
    "ssl.keystore.type": "It is the Java client's. Write ssl.keystore.location (PKCS#12) or ssl.key.location (PEM)",
    "ssl.truststore.location": "It is the Java client's. Write ssl.ca.location, a file of PEM",
    "ssl.truststore.password": "It is the Java client's. Write ssl.ca.location, a file of PEM",
    "ssl.truststore.type": "It is the Java client's. Write ssl.ca.location, a file of PEM",
}
_OF_SOURCES: Final = {
    **_OF_EACH_CLIENT,
    "group.id": "Write group= instead",
    "auto.offset.reset": "Write start=, for a first start, and on_lost_offsets=, for later",
    "isolation.level": "Write isolation= instead",
    "enable.auto.commit": "Write commit= instead",
    "auto.commit.enable": "Write commit= instead",
    "auto.commit.interval.ms": "Write commit='periodic' and commit_interval= instead",
    "enable.auto.offset.store": "Write commit= instead",
    "offset.store.method": "Write commit= instead",
    "topic.blacklist": "Write pattern=, which can leave out what it should not match",
    "max.poll.records": "Write max_rows_per_batch= instead",
    "enable.partition.eof": _SETS_ITSELF,
    "consume.callback.max.messages": _SETS_ITSELF,
    "group.instance.id": _ASSIGNS_ITSELF,
    "group.protocol": _ASSIGNS_ITSELF,
    "group.protocol.type": _ASSIGNS_ITSELF,
    "group.remote.assignor": _ASSIGNS_ITSELF,
    "heartbeat.interval.ms": _ASSIGNS_ITSELF,
    "max.poll.interval.ms": _ASSIGNS_ITSELF,
    "partition.assignment.strategy": _ASSIGNS_ITSELF,
    "session.timeout.ms": _ASSIGNS_ITSELF,
    "key.deserializer": "Leave it out: keys are bytes. Decode them in the pipeline",
    "value.deserializer": "Leave it out: values are bytes. Decode them in the pipeline",
}
"""Client properties that cannot be set as options of a source, and what to do instead."""
OF_SINKS: Final = {
    **_OF_EACH_CLIENT,
    "transactional.id": "Write transactional_id_prefix= instead",
    "acks": "Leave it out: a record counts as written when all replicas in sync have it",
    "request.required.acks": "Leave it out: a record counts as written when all replicas in sync have it",
    "enable.idempotence": "Leave it out, since a retry of the client would write records twice without it",
    "enable.gapless.guarantee": _SETS_ITSELF,
    "delivery.report.only.error": _SETS_ITSELF,
    "dr_cb": _SETS_ITSELF,
    "group.id": "Leave it out: the group of the marker is named by transactional_id_prefix",
    "key.serializer": "Leave it out: a key is text, bytes or JSON, as key= says",
    "value.serializer": "Leave it out. Write format='json' or format='raw'",
}
"""Likewise of a sink."""


def check_options(options: Mapping[Any, object], reserved: Mapping[str, str] = _OF_SOURCES) -> dict[str, Option]:
    """Check client properties, and return them unchanged.

    ``reserved`` has those that cannot be set, each with what to do instead.

    Raises:
        GraphError: a property is set by penstock itself, is a secret that is written out, or has an impossible value.
            The message does not show the value.

    >>> check_options({"security.protocol": "SASL_SSL", "socket.timeout.ms": 5000})
    {'security.protocol': 'SASL_SSL', 'socket.timeout.ms': 5000}
    """
    checked: dict[str, Option] = {}
    for name, value in options.items():
        if not isinstance(name, str):
            msg = f"Option {name!r} is not named by text. Write names such as 'security.protocol'."
            raise GraphError(msg)
        _check_property_name(name, reserved)
        check_option(name, value)
        if not isinstance(value, str | int | float | bool | EnvironmentSecret | FileSecret):
            msg = (
                f"Option {name!r} is a {type(value).__name__}, which cannot be sent to executors. Give text, a number, "
                "true or false, or the reference of a secret. There are no callbacks."
            )
            raise GraphError(msg)
        checked[name] = value
    return checked


def _check_property_name(name: str, reserved: Mapping[str, str]) -> None:
    if name.startswith("kafka."):
        msg = f"Option {name!r} has the prefix of Spark's source. Write {name.removeprefix('kafka.')!r}."
        raise GraphError(msg)
    if name in reserved:
        msg = f"Option {name!r} cannot be set in options. {reserved[name]}."
        raise GraphError(msg)
