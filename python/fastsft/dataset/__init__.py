"""From data files to labelled rows and batches."""
