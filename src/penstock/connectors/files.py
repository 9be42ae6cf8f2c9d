"""``ps.files``: directories of files, exactly-once."""

from penstock.sinks.files import Sink
from penstock.sources.files import Source

__all__ = ["Sink", "Source"]
