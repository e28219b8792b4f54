"""Checks by `fastsft doctor`, for a run before training, and by `fastsft verify`, for a saved directory."""
