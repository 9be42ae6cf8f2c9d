"""Moves elements between tasks; where the threads are. Loads without Spark."""
