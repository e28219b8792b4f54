"""Turns command lines, files of flags, environment variables and call arguments into argument objects."""
