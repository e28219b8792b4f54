"""Models: `from fastsft.model import CausalLM`.

engine_choice.py opens a directory or a transformers object, and chooses the native or the generic engine.
causal_lm.py builds the engine and loads the weights. loaded_model.py trains a transformers object.
model_save.py saves a model into a run's output directory (output_directory.py). conversion.py converts a
model into a new directory. weights.py and stored_weights.py read weights.
"""

from typing import TYPE_CHECKING

from fastsft.runtime.imports import lazy_names

if TYPE_CHECKING:
    from fastsft.model.causal_lm import CausalLM

__all__ = ["CausalLM"]
__getattr__ = lazy_names(__name__, {"CausalLM": "causal_lm"})
