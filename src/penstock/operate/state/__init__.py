"""State of steps as tables: found, read, compared, written."""
