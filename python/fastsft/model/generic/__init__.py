"""The generic engine: transformers models over the engine's flat units, with autograd as the backward.

units.py divides the parameters into units. blocks.py gathers, prefetches and releases the units around each
layer. generic_model.py runs the forward and backward passes that the engine requests, on rows from packing.py
or padding.py. head_loss.py computes the loss. packing_trial.py tries with a small model whether rows may be
packed. base.py is such a model's CausalLM class; causal_lm.py derives it for a directory,
loaded_model.py for an object, and vision_text.py for a text decoder. stored_tensors.py and weights.py map
tensors in files to parameters.
"""
