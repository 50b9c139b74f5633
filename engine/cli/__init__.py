"""The command engine."""
