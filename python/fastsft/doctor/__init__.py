"""Checks of `fastsft doctor`, for a run before training, and of `fastsft verify`, for a saved directory."""
