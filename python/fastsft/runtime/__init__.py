"""Process, files and terminal, for every other room. Knows nothing of training."""
