"""The ranks of a run: what they tell each other outside the training group."""
