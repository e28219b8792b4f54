"""Find changes of a transformers model, or of transformers itself, that the engine would not compute."""
