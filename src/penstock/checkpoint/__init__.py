"""The one consistent cut: made, found again, removed. Loads without Spark."""
