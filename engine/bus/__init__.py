"""The bus of named events."""
