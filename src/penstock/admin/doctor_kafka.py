"""What ``penstock doctor`` asks of Kafka: do the brokers answer, and can a sink publish in transactions there?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.admin.doctor_checks import Finding, fail, ok, warn
from penstock.connectors.kafka.client import Connection
from penstock.connectors.kafka.features import transaction_version
from penstock.connectors.kafka.transactional import TRANSACTION_MS
from penstock.connectors.kafka.transactions import RENEW_AFTER
from penstock.connectors.secrets import Option, resolve
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.connectors.kafka.sink import Sink

# ---- brokers ---------------------------------------------------------------------------------------------------------

BROKER_TIMEOUT: Final = 5.0
"""Seconds that a broker gets to answer."""


def look_at_brokers(
    servers: str, *, options: Mapping[str, Option] | None = None, topics: Collection[str] = ()
) -> Iterator[Finding]:
    """Check that the cluster answers a request for its metadata and has the topics.

    Args:
        servers: ``host:port``, several with commas.
        options: client properties of the source that reads from there, or of the sink.
        topics: the topics that must exist.
    """
    name = f"kafka {servers}"
    try:
        import confluent_kafka
    except ImportError:
        yield fail(name, "its client library is not installed", "pip install 'penstock[kafka]'")
        return
    errors: list[str] = []
    try:
        admin = _admin(Connection(servers=servers, options=options or {}), errors)
    except (PenstockError, confluent_kafka.KafkaException, ValueError) as error:
        yield fail(name, _error_text(error), "correct the servers and options of the source or sink")
        return
    try:
        metadata = admin.list_topics(timeout=BROKER_TIMEOUT)
    except confluent_kafka.KafkaException as error:
        admin.poll(0)  # calls error_cb with the errors so far
        yield unreachable(name, _error_text(error), errors)
        return
    versions = f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"
    yield reached(name, len(metadata.brokers), len(metadata.topics), versions)
    yield from topics_missing(name, wanted=topics, existing=set(metadata.topics))


def reached(name: str, brokers: int, topics: int, client: str) -> Finding:
    """Return the finding that the cluster answered."""
    many = "1 broker" if brokers == 1 else f"{brokers} brokers"
    return ok(name, f"{many}, {topics} topics ({client})")


def unreachable(name: str, why: str, errors: Collection[str] = ()) -> Finding:
    """Return the finding that the cluster did not answer."""
    more = next(iter(errors), "")
    found = f"no answer within {BROKER_TIMEOUT:g} s: {why}" + (f" ({more})" if more and more not in why else "")
    fix = (
        "look whether a broker listens there, and whether its advertised.listeners name addresses that this machine "
        "can reach; for TLS or SASL name the pipeline instead of --servers, so that its options are used"
    )
    return fail(name, found, fix)


def topics_missing(name: str, *, wanted: Collection[str], existing: Collection[str]) -> Iterator[Finding]:
    """Yield a warning if topics are missing."""
    missing = sorted(set(wanted) - set(existing))
    if missing:
        yield warn(name, f"topics that are not there: {', '.join(missing)}", "make them before the job is started")


def _error_text(error: Exception) -> str:
    inner = error.args[0] if error.args else error
    text = getattr(inner, "str", None)
    return str(text()) if callable(text) else str(error)


def _admin(connection: Connection, errors: list[str]) -> Any:
    from confluent_kafka.admin import AdminClient

    make_client: Any = AdminClient
    properties = resolve(connection.client_options())
    return make_client({**properties, "error_cb": lambda error: errors.append(str(error.str())), "log_level": 0})


# ---- transactions ----------------------------------------------------------------------------------------------------

_RENEWED_MINUTES: Final = RENEW_AFTER // 60_000_000
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {"topic": ("WRITE", "DESCRIBE", "READ"), "group": ("READ",)}


def look_at_transactions(sink: Sink) -> Iterator[Finding]:
    """Check that the cluster lets a sink publish exactly once; nothing for a sink without transactions, or unanswered.

    Its transactional id cannot be asked about: only the start finds out whether it may be used.
    """
    import confluent_kafka

    identities = sink.identities_in("")
    if not identities:
        return
    name = f"transactions of {identities[0].transactional_id}"
    try:
        admin = _admin(sink.connection, [])
        brokers = _broker_settings(admin)
        allowed = _allowed(admin, sink.topic, [each.transactional_id for each in identities])
    except (PenstockError, confluent_kafka.KafkaException):
        return  # the line about the brokers says why
    yield version_found(name, transaction_version(sink.connection), sink.least_transaction_version)
    asked = sink.options.get("transaction.timeout.ms", TRANSACTION_MS)
    yield from times_found(name, brokers, asked_ms=int(str(asked)))
    yield from permissions_missing(name, allowed)


def version_found(name: str, version: int | None, least: int) -> Finding:
    """Return what the version of the cluster's transactions means for a sink that takes ``least``."""
    if version is None:
        return warn(
            name, "no broker tells its transaction.version", "see that it is 2, with kafka-features.sh describe"
        )
    if version < least:
        fix = "raise it to 2 with kafka-features.sh, or set least_transaction_version in the sink"
        return fail(name, f"transaction.version is {version}, and the sink needs {least}", fix)
    return ok(name, f"transaction.version {version}")


def times_found(name: str, brokers: Mapping[str, str], *, asked_ms: int) -> Iterator[Finding]:
    """Yield what is wrong with times in the brokers' settings: markers must live, and transactions may last so long."""
    most = brokers.get("transaction.max.timeout.ms")
    if most is not None and asked_ms > int(most):
        fix = f"set transaction.timeout.ms to at most {most} in the sink's options, or raise the brokers' setting"
        yield fail(name, f"transaction.timeout.ms is {asked_ms}, and the brokers allow {most}", fix)
    kept = brokers.get("offsets.retention.minutes")
    if kept is not None and int(kept) < 2 * _RENEWED_MINUTES:
        fix = f"raise offsets.retention.minutes: a running job writes its marker every {_RENEWED_MINUTES} minutes"
        yield warn(name, f"the brokers forget a marker after {kept} minutes", fix)
    elif kept is not None and int(kept) < 24 * 60:
        fix = (
            "raise offsets.retention.minutes: a job that dies and is down for longer has to be told what was published"
        )
        yield warn(name, f"the brokers forget a marker after {kept} minutes", fix)


def permissions_missing(name: str, allowed: Mapping[str, Collection[str] | None]) -> Iterator[Finding]:
    """Yield what the job's user may not do. ``None``: the brokers do not tell."""
    for kind, needed in _NEEDED.items():
        may = allowed.get(kind)
        missing = [] if may is None else [each for each in needed if each not in may]
        if missing:
            fix = f"grant {' and '.join(missing)} on the sink's {_KINDS[kind]} to the job's user"
            yield fail(name, f"{' and '.join(missing)} is not allowed on its {_KINDS[kind]}", fix)


_KINDS: Final = {"topic": "topic", "group": "consumer group, which has the marker"}


def _broker_settings(admin: Any) -> dict[str, str]:
    """The settings of one broker; empty if it does not tell them."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

    broker = next(iter(admin.list_topics(timeout=BROKER_TIMEOUT).brokers))
    resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
    try:
        found = admin.describe_configs([resource], request_timeout=BROKER_TIMEOUT)[resource].result()
    except KafkaException:  # it takes a permission of its own
        return {}
    return {name: entry.value for name, entry in found.items() if entry.value is not None}


def _allowed(admin: Any, topic: str, groups: Collection[str]) -> dict[str, Collection[str] | None]:
    """The operations that are allowed on the topic and on all groups, by kind."""
    from confluent_kafka import TopicCollection

    of_topic = admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=True, request_timeout=BROKER_TIMEOUT
    )[topic]
    of_groups = admin.describe_consumer_groups(
        list(groups), include_authorized_operations=True, request_timeout=BROKER_TIMEOUT
    )
    each = [_operations(future) for future in of_groups.values()]
    known = [may for may in each if may is not None]
    return {"topic": _operations(of_topic), "group": frozenset.intersection(*known) if known else None}


def _operations(described: Any) -> frozenset[str] | None:
    from confluent_kafka import KafkaException

    try:
        operations = described.result().authorized_operations
    except KafkaException:  # it does not exist yet, or may not be looked at: other lines tell
        return None
    return None if operations is None else frozenset(operation.name for operation in operations)
