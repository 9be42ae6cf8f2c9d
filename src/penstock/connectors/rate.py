"""``ps.rate``: numbered rows with a time, for demonstrations and load tests."""

from penstock.sources.rate import Source

__all__ = ["Source"]
