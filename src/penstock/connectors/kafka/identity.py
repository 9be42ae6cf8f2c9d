"""The name under which output is published to Kafka, and what its marker says of an epoch. Decisions only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from penstock.connectors.kafka.client import Connection
from penstock.connectors.secrets import options_from_json, options_to_json
from penstock.errors import SinkIdentityConflict
from penstock.handles import output_names

if TYPE_CHECKING:
    from penstock.handles import Committable, Json

OnLostMarker: TypeAlias = Literal["fail", "publish", "discard"] | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The name under which output is published, and how to reach its cluster. A committable has it, without secrets.

    Attributes:
        connection: to the cluster.
        transactional_id: also the name of the marker's consumer group.
        topic: of records that name none; its partition 0 has the marker.
        log_id: of the job whose output it is.
        on_lost_marker: what to do with open output of which no marker says whether it was published. A number is that
            of the last checkpoint whose output is in the topic.
        shards: how many such identities the sink has. If several, executors publish.
    """

    connection: Connection
    transactional_id: str
    topic: str
    log_id: str
    on_lost_marker: OnLostMarker = "fail"
    shards: int = 1

    def without_marker(self, checkpoint: int) -> Literal["fail", "publish", "discard"]:
        """What to do with output of a checkpoint of which no marker tells.

        >>> from penstock.connectors.kafka.client import Connection
        >>> connection = Connection(servers="k:9092", options={})
        >>> identity = Identity(
        ...     connection=connection, transactional_id="a-0", topic="t", log_id="a", on_lost_marker=3
        ... )
        >>> identity.without_marker(3), identity.without_marker(4)
        ('discard', 'publish')
        """
        if isinstance(self.on_lost_marker, int):
            return "discard" if checkpoint <= self.on_lost_marker else "publish"
        return self.on_lost_marker

    def to_json(self) -> dict[str, Json]:
        """The identity as the detail of a committable."""
        return {
            "servers": self.connection.servers,
            "options": options_to_json(self.connection.options),
            "transactional_id": self.transactional_id,
            "topic": self.topic,
            "log": self.log_id,
            "on_lost_marker": self.on_lost_marker,
            "shards": self.shards,
        }

    @classmethod
    def of(cls, item: Committable) -> Identity:
        """The identity of a committable."""
        detail: Any = item.detail
        return cls(
            connection=Connection(servers=detail["servers"], options=options_from_json(detail["options"])),
            transactional_id=detail["transactional_id"],
            topic=detail["topic"],
            log_id=detail["log"],
            on_lost_marker=detail["on_lost_marker"],
            shards=detail["shards"],
        )


_WRITTEN_BY: Final = "penstock/1 "
_DOUBTFUL: Final = " doubtful"


@dataclass(frozen=True, slots=True)
class Marker:
    """What the group of a transactional id remembers.

    Attributes:
        log_id: of the log whose output was published; empty for a marker that penstock has not written.
        next: the first checkpoint that is neither published nor void.
        doubtful: an operator settled what is below ``next``, because the marker was lost. What was prepared above may
            have been published before the loss, so the marker does not tell. The next run, which begins with nothing
            open, ends the doubt.
    """

    log_id: str
    next: int
    doubtful: bool = False

    @property
    def metadata(self) -> str:
        """The text that is committed with the number."""
        return _WRITTEN_BY + self.log_id + (_DOUBTFUL if self.doubtful else "")

    @classmethod
    def parse(cls, offset: int, metadata: str | None) -> Marker | None:
        """The marker of a committed offset; ``None`` if there is none (a negative offset).

        >>> Marker.parse(8, "penstock/1 abc"), Marker.parse(-1001, ""), Marker.parse(3, "by hand").log_id
        (Marker(log_id='abc', next=8, doubtful=False), None, '')
        """
        if offset < 0:
            return None
        text = metadata or ""
        if not text.startswith(_WRITTEN_BY):
            return cls("", offset)
        log_id = text.removeprefix(_WRITTEN_BY)
        return cls(log_id.removesuffix(_DOUBTFUL), offset, doubtful=log_id.endswith(_DOUBTFUL))


class Verdict(Enum):
    """What a marker says of an output."""

    OPEN = "open"
    SETTLED = "settled"
    """Published, or void."""
    FOREIGN = "foreign"
    """The marker is another job's, or that of a lost state directory (rule S4)."""
    UNKNOWN = "unknown"
    """There is no marker (rule S5): it expired, or was deleted. Or a ``doubtful`` one, which says nothing of it."""


def judge(marker: Marker | None, *, log_id: str, checkpoint: int) -> Verdict:
    """What the marker says of the output of a checkpoint.

    >>> judge(Marker("a", 4), log_id="a", checkpoint=3), judge(Marker("a", 4), log_id="a", checkpoint=4)
    (<Verdict.SETTLED: 'settled'>, <Verdict.OPEN: 'open'>)
    """
    if marker is None:
        return Verdict.UNKNOWN
    if marker.log_id != log_id:
        return Verdict.FOREIGN
    if checkpoint < marker.next:
        return Verdict.SETTLED
    return Verdict.UNKNOWN if marker.doubtful else Verdict.OPEN


def fits_run(marker: Marker | None, *, log_id: str, next_checkpoint: int | None) -> bool:
    """Whether a run of a log, of which nothing is open, may go on beside this marker.

    A marker above the run's first checkpoint is of a younger copy of the log: this run's output would be taken for
    published.
    """
    if marker is None:
        return True
    return marker.log_id == log_id and (next_checkpoint is None or marker.next <= next_checkpoint)


def foreign(marker: Marker, identity: Identity, uid: str) -> SinkIdentityConflict:
    """The error about a marker of another log."""
    group, whose = identity.transactional_id, f"another log ({marker.log_id})" if marker.log_id else "another program"
    msg = (
        f"Consumer group {group!r} at {identity.connection.servers}, which says what was published under this "
        f"transactional id, was written by {whose}, not by this job's ({identity.log_id}). Another job has "
        "the same transactional_id_prefix, or the state directory was lost and the job would publish its input again. "
        "Give one of them another prefix, or the job its old state directory. To begin anew under this name, and only "
        "if no other job uses it, delete that consumer group."
    )
    return SinkIdentityConflict(msg, uid=uid)


def younger(marker: Marker, identity: Identity, uid: str, next_checkpoint: int | None) -> SinkIdentityConflict:
    """The error about a marker that is above what the log knows."""
    msg = (
        f"Consumer group {identity.transactional_id!r} at {identity.connection.servers} says that all checkpoints "
        f"below {marker.next} were published, and this job would take {next_checkpoint} next. The state directory is "
        "an older copy than what was published. Bring the newest one back, or give the sink another "
        "transactional_id_prefix."
    )
    return SinkIdentityConflict(msg, uid=uid)


def lost(item: Committable, identity: Identity) -> SinkIdentityConflict:
    """The error that no marker says whether an output was published."""
    msg = (
        f"Whether {output_names(item)} was published to {item.target} cannot be told. Consumer group "
        f"{identity.transactional_id!r}, which would say it, has lost its offset for topic {identity.topic!r}: it "
        "expired (offsets.retention.minutes of the brokers) or was deleted. Look whether the records are in the topic, "
        "and start the job once with on_lost_marker='publish' if they are not, or on_lost_marker='discard' if they "
        "are. If later output waits too, and only the first of it is in the topic, give the number of its last "
        f"checkpoint, as in on_lost_marker={item.checkpoint}: what is above it is published."
    )
    return SinkIdentityConflict(msg, uid=item.uid)
