"""Sources and sinks, grouped by system: ``ps.files.Source``, ``ps.files.Sink``, ``ps.kafka.Source``."""
