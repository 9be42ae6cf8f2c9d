"""Windowed aggregates."""
