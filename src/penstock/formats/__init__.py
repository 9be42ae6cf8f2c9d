"""Text and bytes to columns."""
