"""Function-style middleware: closures that do one thing."""
