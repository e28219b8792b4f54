"""Finds changes to a model or to transformers itself that the engine would not reproduce."""
