"""The tokenizer of a run of `train()`."""

from __future__ import annotations

from typing import Any

from fastsft.runtime.messages import warn_once
from fastsft.script_names.rebound import rebound_data_names
from fastsft.tokenizer.tokenizer import Tokenizer


def run_tokenizer(directory: str, model_max_length: int, padding_side: str) -> Any:
    """fastsft's Tokenizer, or transformers' slow one, as FastChat has it, for data that a script makes.

    ValueError when transformers is needed and not installed.
    """
    names = rebound_data_names()
    options: dict[str, Any] = {"model_max_length": model_max_length, "padding_side": padding_side}
    if names:
        return _of_transformers(directory, names, options)
    return Tokenizer.from_pretrained(directory, **options)


def _of_transformers(directory: str, names: list[str], options: dict[str, Any]) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ValueError(
            f"train.{names[0]} was set by the script and is given the tokenizer of transformers, which "
            f"cannot be imported ({error}): pip install transformers"
        ) from None
    warn_once(f"set by the script, and given the tokenizer of transformers: train.{', train.'.join(names)}")
    return AutoTokenizer.from_pretrained(directory, use_fast=False, **options)  # type: ignore[no-untyped-call]
