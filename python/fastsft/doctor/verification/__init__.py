"""The checks of `fastsft verify`, which read every file of a model directory or a checkpoint."""
