"""FastChat's functions that replace the attention of transformers' Llama: here they replace nothing."""

from __future__ import annotations

from fastsft.runtime.messages import warn_once


def replaced_nothing(name: str, kernel: str) -> None:
    """Say once that the function `name` changed nothing. kernel: the attention of FastChat's function."""
    warn_once(
        f"{name}: nothing was replaced. fastsft's engine computes exact attention without padding by itself; "
        f"a model of transformers that something else trains keeps its own: for {kernel} there, load "
        'it with attn_implementation="flash_attention_2" or "sdpa"'
    )
