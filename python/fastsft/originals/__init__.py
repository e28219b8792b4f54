"""Compares library code in memory, which scripts may have changed, with the library's source files."""
