"""Checks for scripts that change transformers, torch or the Trainer, and names of transformers' Trainer.

`python -m fastsft.train` runs without the checks, since no code of a script runs in its process.
"""
