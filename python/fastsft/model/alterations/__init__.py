"""What makes a model of transformers, or transformers itself, compute something else than the engine."""
