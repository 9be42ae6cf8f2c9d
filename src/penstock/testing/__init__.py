"""Tools for testing pipelines and connectors; they ship, and are documented."""
