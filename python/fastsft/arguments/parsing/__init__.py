"""Flags and call arguments to objects: the command line, files of flags, environment."""
