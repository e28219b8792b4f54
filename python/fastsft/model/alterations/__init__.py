"""Finds changes to a transformers model, or to transformers, that the engine would not compute."""
