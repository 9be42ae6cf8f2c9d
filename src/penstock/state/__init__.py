"""What a step remembers: stacks of immutable layers."""
