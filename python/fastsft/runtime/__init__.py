"""Process, files and terminal, for every part. Knows nothing of training."""
