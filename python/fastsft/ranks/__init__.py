"""The ranks of a run: what they tell each other beside the training group."""
