"""Rows that a script's own `preprocess` makes, as FastChat's data sets take them from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastsft.arguments.data import DataArguments
from fastsft.arguments.given import was_given
from fastsft.arguments.support import default_of

_NAMES = ("input_ids", "labels", "attention_mask")
# What concerns rows whoever makes them.
_OF_ANY_ROWS = (
    "data_path",
    "eval_data_path",
    "lazy_preprocess",
    "check_data",
    "dump_masked",
    "data_cache",
    "data_format",
    "save_chat_template",
)


def called_columns(
    preprocess: Callable[..., object], sources: Sequence[Any], tokenizer: object
) -> dict[str, Any]:
    """`input_ids`, `labels` and `attention_mask` of what a script's `preprocess` returns for `sources`."""
    result = preprocess(sources, tokenizer)
    if not isinstance(result, Mapping) or not set(_NAMES) <= set(result):
        got = ", ".join(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
        name = getattr(preprocess, "__qualname__", type(preprocess).__name__)
        raise ValueError(
            f"preprocess was set by the script to {name}, which returned {got}; expected a dictionary with "
            f"{', '.join(_NAMES)}, a row for each conversation"
        )
    return {name: result[name] for name in _NAMES}


def refuse_label_flags(data_args: object, name: str) -> None:
    """ValueError for flags of labels, which have no effect on rows that a script makes."""
    for field in dataclasses.fields(DataArguments):
        value = getattr(data_args, field.name, field.default)
        is_asked = was_given(data_args, field.name) or value != default_of(field)
        if field.name not in _OF_ANY_ROWS and is_asked:
            raise ValueError(
                f"--{field.name} {value} has no effect: train.{name} was set by the script and makes the "
                "rows; leave the flag out"
            )
