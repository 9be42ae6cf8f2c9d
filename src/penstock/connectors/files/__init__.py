"""``ps.files``: directories of files, exactly-once."""

from penstock.connectors.files.sink import Sink
from penstock.connectors.files.source import Source

__all__ = ["Sink", "Source"]
