"""``ps.memory``: rows kept in this process, for tests and notebooks."""

from penstock.sinks.memory import Sink

__all__ = ["Sink"]
