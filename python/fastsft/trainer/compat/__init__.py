"""Checks of a script's changes to transformers, torch or the Trainer; attributes of transformers' Trainer.

`python -m fastsft.train` runs without these checks, since no script code runs in that process.
"""
