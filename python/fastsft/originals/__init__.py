"""Compare library code, as a script has left it, with the library's source files."""
