"""Rows given up on, kept and read again."""
