"""Checkpoints: what is in one, writing, choosing, loading."""
