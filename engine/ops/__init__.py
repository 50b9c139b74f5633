"""Pure functions over arrays of any library."""
