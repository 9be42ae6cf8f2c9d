"""``ps.receivers``: sources that are given rows."""

from penstock.connectors.receivers.receiver import Receiver, Source, Store

__all__ = ["Receiver", "Source", "Store"]
