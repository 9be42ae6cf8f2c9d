"""From the graph to what runs."""
