"""Data files and hub data sets as streams of bytes, lines and records."""
