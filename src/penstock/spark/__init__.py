"""All calls to Spark's internals."""
