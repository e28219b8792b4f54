"""Provides the function of FastChat's module llama_flash_attn_monkey_patch, as a no-op."""

from __future__ import annotations

from fastsft.script_names.patched_libraries import replaced_nothing


def replace_llama_attn_with_flash_attn() -> None:
    """Print a notice that nothing is replaced, since the engine has exact flash attention already."""
    replaced_nothing("replace_llama_attn_with_flash_attn", "flash attention")
