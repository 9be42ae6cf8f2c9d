"""``ps.receivers``: sources that are given rows."""

from penstock.connectors.receivers.receiver import Source
from penstock.connectors.receivers.rows import Receiver, Store

__all__ = ["Receiver", "Source", "Store"]
