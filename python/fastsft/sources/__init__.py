"""Data files and hub data sets, read as streams of bytes, lines and records."""
