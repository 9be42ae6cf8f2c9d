"""Protocols that sources, sinks and operators implement."""
