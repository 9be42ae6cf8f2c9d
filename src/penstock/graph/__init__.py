"""What the user writes, as frozen data."""
