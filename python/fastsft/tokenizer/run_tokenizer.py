"""The tokenizer of a run of `train()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastsft.runtime.messages import warn_once
from fastsft.script_names.rebound import rebound_data_names
from fastsft.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def run_tokenizer(
    directory: str, model_max_length: int, padding_side: str
) -> Tokenizer | PreTrainedTokenizerBase:
    """fastsft's Tokenizer, or transformers' slow one, as FastChat has it, for data that a script makes.

    ValueError when transformers is needed and not installed.
    """
    names = rebound_data_names()
    if names:
        return _of_transformers(directory, names, model_max_length, padding_side)
    return Tokenizer.from_pretrained(directory, model_max_length=model_max_length, padding_side=padding_side)


def _of_transformers(
    directory: str, names: list[str], model_max_length: int, padding_side: str
) -> PreTrainedTokenizerBase:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ValueError(
            f"train.{names[0]} was set by the script and is given the tokenizer of transformers, which "
            f"cannot be imported ({error}): pip install transformers"
        ) from None
    warn_once(f"set by the script, and given the tokenizer of transformers: train.{', train.'.join(names)}")
    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        directory, use_fast=False, model_max_length=model_max_length, padding_side=padding_side
    )
    return found
