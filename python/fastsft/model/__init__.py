"""Models: `from fastsft.model import CausalLM`. Their directories, weights, and changes made by scripts."""

from typing import TYPE_CHECKING

from fastsft.runtime.imports import lazy_names

if TYPE_CHECKING:
    from fastsft.model.causal_lm import CausalLM

__all__ = ["CausalLM"]
__getattr__ = lazy_names(__name__, {"CausalLM": "causal_lm"})
