"""Trains from a notebook, with ranks as child processes; the notebook's own process does not load CUDA."""
