"""``ps.kinesis``: shards of a Kinesis stream, and references to the secrets of its clients."""

from penstock.connectors.kinesis.sink import Sink
from penstock.connectors.kinesis.source import Source
from penstock.connectors.secrets import env, file

__all__ = ["Sink", "Source", "env", "file"]
