"""New code on a copy of yesterday's state, its outputs compared with those of the old code."""
