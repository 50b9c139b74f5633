"""Class-style middleware: the crew."""
