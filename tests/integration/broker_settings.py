"""The settings of a one-node broker: what stands in its files. Writes nothing and starts nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
CONTROLLER = "CONTROLLER"

LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
logger.settings.name = org.apache.kafka.common.config
logger.settings.level = WARN
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n
"""

ONE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": CONTROLLER,
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "default.replication.factor": "1",
    "auto.create.topics.enable": "false",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.backoff.ms": "100",  # a test of compaction need not wait long
    "log.segment.bytes": str(128 << 20),
    "message.max.bytes": str(32 << 20),
    "replica.fetch.max.bytes": str(32 << 20),
    "broker.session.timeout.ms": "2000",  # a node that was killed may register again only after that
    "broker.heartbeat.interval.ms": "500",
}
"""What has to be said because there is one node, and what makes it small."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One port of a broker, and how clients prove there who they are.

    Args:
        name: Kafka's name of it, in capitals.
        protocol: ``PLAINTEXT``, ``SSL``, ``SASL_PLAINTEXT`` or ``SASL_SSL``.
        options: settings of this listener alone, without its prefix.
    """

    name: str
    protocol: str
    options: Mapping[str, str] = field(default_factory=dict)


OPEN = Listener("PLAINTEXT", "PLAINTEXT")


def server_properties(
    data: Path, ports: Mapping[str, int], listeners: Sequence[Listener], overrides: Mapping[str, str]
) -> str:
    """``server.properties``; the first listener is the one that the broker itself uses.

    Args:
        data: the folder of its logs.
        ports: by the listener's name, the controller's too.
        listeners: where clients come in.
        overrides: what is different for this broker.
    """
    where = {each.name: f"{each.name}://{HOST}:{ports[each.name]}" for each in listeners}
    protocols = {each.name: each.protocol for each in listeners} | {CONTROLLER: "PLAINTEXT"}
    settings = ONE_NODE | {
        "log.dirs": str(data),
        "controller.quorum.voters": f"1@{HOST}:{ports[CONTROLLER]}",
        "listeners": ",".join([*where.values(), f"{CONTROLLER}://{HOST}:{ports[CONTROLLER]}"]),
        "advertised.listeners": ",".join(where.values()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "inter.broker.listener.name": listeners[0].name,
    }
    for listener in listeners:
        settings |= {f"listener.name.{listener.name.lower()}.{key}": text for key, text in listener.options.items()}
    return "".join(f"{name}={_escaped(text)}\n" for name, text in (settings | dict(overrides)).items())


def _escaped(text: str) -> str:
    """A value as Java's properties are written: a line goes on after a backslash, and a backslash is doubled."""
    return text.replace("\\", "\\\\").replace("\n", "\\n")
