"""Keyed steps."""
