"""``ps.kinesis``: shards of a Kinesis stream, and how far they were read in a lease table."""

from penstock.connectors.kinesis.checkpointer import KinesisCheckpointer
from penstock.connectors.kinesis.lease_import import imported
from penstock.connectors.kinesis.positions import After, Finished

__all__ = ["After", "Finished", "KinesisCheckpointer", "imported"]
