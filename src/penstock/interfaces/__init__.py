"""What a source, a sink, an operator is to the engine: protocols, no code of any."""
