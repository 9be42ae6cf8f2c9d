"""State of a step: stacks of immutable layers."""
