"""``ps.generator``: rows computed from their number by the user's own expressions."""

from penstock.sources.generator import Source

__all__ = ["Source"]
