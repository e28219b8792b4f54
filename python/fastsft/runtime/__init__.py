"""What every part needs of process, files and terminal. Knows nothing of training."""
