"""Training from a notebook: the ranks are child processes; the notebook's own has no CUDA and no groups."""
