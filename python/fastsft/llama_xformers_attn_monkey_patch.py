"""Provides the function of FastChat's module llama_xformers_attn_monkey_patch, as a no-op."""

from __future__ import annotations

from fastsft.script_names.patched_libraries import replaced_nothing


def replace_llama_attn_with_xformers_attn() -> None:
    """Print a notice that nothing is replaced, since the engine's attention is as fast and exact already."""
    replaced_nothing("replace_llama_attn_with_xformers_attn", "memory-efficient attention")
