"""``ps.kafka``: topics of a Kafka cluster, and references to the secrets of its clients."""

from penstock.sources.kafka.secrets import env, file
from penstock.sources.kafka.source import Source

__all__ = ["Source", "env", "file"]
