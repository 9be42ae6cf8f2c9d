"""``ps.kinesis``: shards of a Kinesis stream, and references to the secrets of its clients."""

from penstock.connectors.kinesis.source import Source
from penstock.connectors.secrets import env, file

__all__ = ["Source", "env", "file"]
