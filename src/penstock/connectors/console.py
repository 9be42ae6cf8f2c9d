"""``ps.console``: rows printed for a person."""

from penstock.sinks.console import Sink

__all__ = ["Sink"]
