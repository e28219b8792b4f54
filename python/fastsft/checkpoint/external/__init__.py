"""Saves other libraries' models, and reads their checkpoints."""
