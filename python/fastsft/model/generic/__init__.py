"""The generic engine: transformers models over the engine's flat units, with autograd's backward.

units.py divides the parameters into units. blocks.py gathers, prefetches and releases them around each layer;
generic_model.py runs the passes that the engine calls, on rows of packing.py or padding.py, and head_loss.py
adds the loss. packing_trial.py decides by a small model whether rows may be packed.
base.py is the CausalLM of such a model: causal_lm.py from a directory, loaded_model.py from an object,
vision_text.py for a text decoder. stored_tensors.py and weights.py map the files' tensors to parameters.
"""
