"""FastChat's llama_xformers_attn_monkey_patch: its function is there, and changes nothing."""

from __future__ import annotations

from fastsft.script_names.patched_libraries import replaced_nothing


def replace_llama_attn_with_xformers_attn() -> None:
    """Nothing, with a line that says so: the engine's attention is exact and as fast by itself."""
    replaced_nothing("replace_llama_attn_with_xformers_attn", "memory-efficient attention")
