"""``ps.kinesis``: streams in and out, how far they were read in a lease table, and references to secrets."""

from penstock.connectors.kinesis.checkpointer import KinesisCheckpointer
from penstock.connectors.kinesis.lease_commits import leases
from penstock.connectors.kinesis.lease_import import imported
from penstock.connectors.kinesis.positions import After, Finished
from penstock.connectors.kinesis.sink import Sink
from penstock.connectors.kinesis.source import Source
from penstock.connectors.secrets import env, file

__all__ = ["After", "Finished", "KinesisCheckpointer", "Sink", "Source", "env", "file", "imported", "leases"]
