"""Kafka brokers: whether they answer in time, and whether topics that a pipeline reads are there. Reads no record."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.operate.doctor.findings import Finding, fail, ok, warn
from penstock.sources.kafka.client import Connection
from penstock.sources.kafka.secrets import Option, resolve

PATIENCE: Final = 5.0
"""Seconds for an answer."""


def look_at_brokers(
    servers: str, *, options: Mapping[str, Option] | None = None, topics: Collection[str] = ()
) -> Iterator[Finding]:
    """Ask the cluster for its metadata.

    Args:
        servers: ``host:port``, several with commas.
        options: client properties of the source that reads from there.
        topics: that must be there.
    """
    name = f"kafka {servers}"
    try:
        import confluent_kafka
        from confluent_kafka.admin import AdminClient
    except ImportError:
        yield fail(name, "its client library is not installed", "pip install 'penstock[kafka]'")
        return
    heard: list[str] = []
    try:
        asked = resolve(Connection(servers=servers, options=options or {}).client_options())
        client: Any = AdminClient
        admin = client({**asked, "error_cb": lambda error: heard.append(str(error.str())), "log_level": 0})
    except (PenstockError, confluent_kafka.KafkaException, ValueError) as error:
        yield fail(name, _words(error), "correct the servers and options of the source")
        return
    try:
        told = admin.list_topics(timeout=PATIENCE)
    except confluent_kafka.KafkaException as error:
        admin.poll(0)  # hears what was said meanwhile
        yield unreachable(name, _words(error), heard)
        return
    versions = f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"
    yield reached(name, len(told.brokers), len(told.topics), versions)
    yield from topics_of(name, wanted=topics, there=set(told.topics))


def reached(name: str, brokers: int, topics: int, client: str) -> Finding:
    """It answered."""
    many = "1 broker" if brokers == 1 else f"{brokers} brokers"
    return ok(name, f"{many}, {topics} topics ({client})")


def unreachable(name: str, why: str, heard: Collection[str] = ()) -> Finding:
    """It did not."""
    more = next(iter(heard), "")
    found = f"no answer within {PATIENCE:g} s: {why}" + (f" ({more})" if more and more not in why else "")
    fix = (
        "look whether a broker listens there, and whether its advertised.listeners name addresses that this machine "
        "can reach; for TLS or SASL name the pipeline instead of --servers, so that its options are used"
    )
    return fail(name, found, fix)


def topics_of(name: str, *, wanted: Collection[str], there: Collection[str]) -> Iterator[Finding]:
    """Whether the topics that are read are there."""
    missing = sorted(set(wanted) - set(there))
    if missing:
        yield warn(name, f"topics that are not there: {', '.join(missing)}", "make them before the job is started")


def _words(error: Exception) -> str:
    inner = error.args[0] if error.args else error
    text = getattr(inner, "str", None)
    return str(text()) if callable(text) else str(error)
