"""Changes by which a model of transformers, or transformers itself, computes other things than the engine."""
