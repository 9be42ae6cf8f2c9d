"""Where bytes rest."""
