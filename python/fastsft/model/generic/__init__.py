"""The generic engine: transformers models over the engine's flat units, with autograd as the backward.

units.py divides the parameters into units. blocks.py gathers, prefetches and releases them around each layer.
generic_model.py runs the passes that the engine calls, on rows from packing.py or padding.py, and
head_loss.py adds the loss. packing_trial.py tries with a small model whether rows may be packed. base.py is
the CausalLM of such a model, derived in causal_lm.py for a directory, in loaded_model.py for an object and in
vision_text.py for a text decoder. stored_tensors.py and weights.py map the tensors of files to parameters.
"""
