"""Models of transformers on the engine's flat units: forward and backward are autograd's."""
