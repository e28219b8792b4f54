"""Saving of other libraries' models, and reading of their checkpoints."""
