"""Guards for a script that changes transformers, torch or the Trainer while fastsft trains.

`python -m fastsft.train` runs without them: only fastsft's own code runs then.
"""
