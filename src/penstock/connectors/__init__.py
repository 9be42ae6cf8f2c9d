"""Sources and sinks of one kind under one name each, as users write them: ``ps.files.Source``, ``ps.files.Sink``."""
