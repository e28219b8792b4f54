"""Checkpoints: their contents, and how they are written, chosen and loaded."""
