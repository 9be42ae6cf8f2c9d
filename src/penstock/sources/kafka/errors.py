"""What Kafka's errors mean for a job: whose fault, whether a retry can help, what to do. Knows no connection.

Names are librdkafka's: those of its own making begin with an underscore, the others are the broker's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock import formats
from penstock.errors import ConnectorError, SourceChanged, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

MARK: Final = "penstock.kafka:"
"""Stands before what our code in a worker tells of a failed read in an exception's text, as JSON."""

END_REACHED: Final = "_PARTITION_EOF"
"""No error: there is nothing more in a partition by now, and its offset is where the next record will be."""

_LOGIN: Final = frozenset(
    {"SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE", "_AUTHENTICATION", "_SSL"}
)
_WORDLESS: Final = frozenset({"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_WAIT_COORD", "REQUEST_TIMED_OUT"})
_FORBIDDEN: Final = frozenset({"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "SECURITY_DISABLED"})
_GROUP: Final = frozenset({"GROUP_AUTHORIZATION_FAILED"})
_GONE: Final = frozenset({"OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET", "_LOG_TRUNCATION"})
_UNKNOWN: Final = frozenset(
    {
        "UNKNOWN_TOPIC_OR_PART",
        "UNKNOWN_TOPIC_ID",
        "INCONSISTENT_TOPIC_ID",
        "TOPIC_EXCEPTION",
        "_UNKNOWN_TOPIC",
        "_UNKNOWN_PARTITION",
    }
)
_IMPOSSIBLE: Final = frozenset(
    {
        "INVALID_GROUP_ID",
        "INVALID_REQUEST",
        "UNSUPPORTED_COMPRESSION_TYPE",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "UNSUPPORTED_VERSION",
        "_BAD_COMPRESSION",
        "_BAD_MSG",
        "_FATAL",
        "_INVALID_ARG",
        "_NOT_IMPLEMENTED",
        "_UNSUPPORTED_FEATURE",
    }
)


class Trouble(Protocol):
    """What a client says went wrong: confluent-kafka's ``KafkaError``."""

    def name(self) -> str:
        """The code, as text."""
        ...

    def str(self) -> str:
        """For people."""
        ...


class FetchFailed(Exception):
    """A range cannot be read. The text is for :func:`explain`; it may come from another process."""

    def __init__(self, told: Mapping[str, object]) -> None:
        super().__init__(MARK + json.dumps(told))
        self.told = told


def passes(name: str) -> bool:
    """Whether a consumer that has met this error goes on by itself and only has to be waited for.

    A group that may not be used is none of a reader's business: it never joins one. A login that is refused in the
    middle of a run is tried again by the client, and ends the wait like a broker that is away.

    >>> passes("_TRANSPORT"), passes("NOT_LEADER_FOR_PARTITION"), passes("OFFSET_OUT_OF_RANGE")
    (True, True, False)
    """
    return name not in _FORBIDDEN | _GONE | _UNKNOWN | _IMPOSSIBLE


def is_refusal(name: str) -> bool:
    """Whether the other side, or this one, does not accept who the other is."""
    return name in _LOGIN


def is_outage(name: str) -> bool:
    """Whether no broker at all is connected; what came of each was said before."""
    return name == "_ALL_BROKERS_DOWN"


def is_wordless(name: str) -> bool:
    """Whether the error only says that nothing came: what the client said besides tells why."""
    return name in _WORDLESS


def failure(name: str, said: str, *, servers: str, what: str) -> ConnectorError:
    """The error of a job whose client met this one.

    Args:
        name: the code.
        said: the client's own words.
        servers: which cluster.
        what: what was wanted: ``"topic 'orders'"``.

    >>> failure("_TRANSPORT", "connection refused", servers="k:9092", what="topic 'orders'").retry
    True
    """
    for names, kind, meaning in _MEANINGS:
        if name in names:
            return kind(f"Kafka at {servers}, {what}: {meaning.format(said=f'{name}: {said}')}")
    reach = "see that a broker runs there and can be reached"
    return SourceUnavailable(f"Kafka at {servers}, {what}: not reached ({name}: {said}); {reach}")


_MEANINGS: Final[tuple[tuple[frozenset[str], type[ConnectorError], str], ...]] = (
    (_LOGIN, ConnectorError, "no secure connection ({said}): check security.protocol, ssl.* and sasl.* in options"),
    (_FORBIDDEN, ConnectorError, "not allowed ({said}): grant READ and DESCRIBE on the topic to this job's user"),
    (_GROUP, ConnectorError, "not allowed ({said}): grant READ on the consumer group to this job's user"),
    (_GONE, SourceChanged, "what is to be read is gone ({said}): retention, or a topic made again, has removed it"),
    (_UNKNOWN, ConnectorError, "it is not there ({said}): create it, or correct the name"),
    (_IMPOSSIBLE, ConnectorError, "the client cannot go on ({said}): check the options of the source"),
)


def told_of(told: Mapping[str, Any]) -> ConnectorError:
    """The error of a job for what a failed read told."""
    if "message" in told:
        return ConnectorError(str(told["message"]))
    what = (
        f"topic {told.get('topic')!r} partition {told.get('partition')}, offsets {told.get('from')} to {told.get('to')}"
    )
    error = failure(str(told.get("code")), str(told.get("said")), servers=str(told.get("servers")), what=what)
    if isinstance(error, SourceChanged) and told.get("goes_on"):
        return SourceUnavailable(f"{error}; a restart goes on behind it, as on_lost_offsets='continue' says")
    return error


def explain(exception: BaseException) -> ConnectorError | None:
    """What a failed job says about the ranges of topics it read; ``None`` if it failed for another reason."""
    for told in formats.marked(exception, MARK):
        return told_of(told)
    return None


def is_loss(told: Mapping[str, Any]) -> bool:
    """Whether a read failed because what it was to read is not there."""
    return told.get("code") in _GONE | _UNKNOWN
