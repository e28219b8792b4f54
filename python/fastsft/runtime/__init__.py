"""Processes, files and the terminal, for all other packages of fastsft. Contains nothing about training."""
