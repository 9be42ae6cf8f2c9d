"""``ps.kafka``: topics of a Kafka cluster, and references to the secrets of its clients."""

from penstock.connectors.kafka.sink import Sink
from penstock.connectors.kafka.source import Source
from penstock.connectors.secrets import env, file

__all__ = ["Sink", "Source", "env", "file"]
