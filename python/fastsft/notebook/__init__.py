"""Training from a notebook: ranks are child processes, and the notebook's process loads no CUDA."""
