"""``ps.kafka``: topics of a Kafka cluster, and references to the secrets of its clients."""

from penstock.sources.kafka import Source
from penstock.sources.kafka_secrets import env, file

__all__ = ["Source", "env", "file"]
