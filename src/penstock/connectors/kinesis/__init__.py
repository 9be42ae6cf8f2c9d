"""``ps.kinesis``: shards of a Kinesis stream."""
