"""Kafka as a source: what to read of which partitions, who reads it, and what is told on the way."""
