"""The only room where Spark's internals are touched."""
