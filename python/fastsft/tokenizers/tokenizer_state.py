"""All of a tokenizer object that the ids of a text depend on, to compare with later."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from fastsft.originals.classes import methods_of
from fastsft.originals.functions import plain

_SETTINGS = (
    "model_max_length", "pad_token_id", "padding_side", "truncation_side", "chat_template", "vocab_file",
    "legacy", "add_prefix_space", "add_bos_token", "add_eos_token", "sp_model_kwargs", "all_special_ids",
    "bos_token_id", "eos_token_id", "unk_token_id", "split_special_tokens", "do_lower_case",
    "clean_up_tokenization_spaces", "_added_tokens_decoder", "_extra_special_tokens",
)  # fmt: skip
_OBJECTS = ("sp_model", "native", "_tokenizer", "tokenizer", "tokens_trie")
_IN_PYTHON = ("sp_model", "tokens_trie")  # of them, those whose classes a script can change
_OF_MODELS = (
    "dropout",
    "unk_token",
    "byte_fallback",
    "fuse_unk",
    "ignore_merges",
    "continuing_subword_prefix",
)


def tokenizer_state(tokenizer: Any) -> tuple[Any, ...]:
    """Equal for the same object as long as it makes the same ids of a text; never kept beyond the object.

    In it: class and code of all methods, functions on the object, special and added tokens, what a script
    sets by name, and of a fast tokenizer the parts of its backend.
    """
    attributes = getattr(tokenizer, "__dict__", {})
    return (
        id(tokenizer),
        len(tokenizer) if hasattr(tokenizer, "__len__") else None,
        methods_of(type(tokenizer)),
        tuple([(name, *_code_of(value)) for name, value in attributes.items() if callable(value)]),
        tuple([(name, value) for name, value in attributes.items() if isinstance(value, bool | str)]),
        tuple([repr(getattr(tokenizer, name, None)) for name in _SETTINGS]),
        tuple([_part_state(attributes.get(name)) for name in _OBJECTS]),
        tuple([methods_of(type(attributes.get(name))) for name in _IN_PYTHON]),
        _backend_state(getattr(tokenizer, "backend_tokenizer", None)),
    )


def _part_state(part: Any) -> tuple[Any, ...]:
    own = {name: _code_of(value) for name, value in getattr(part, "__dict__", {}).items() if callable(value)}
    return id(part), tuple(own.items())


def _code_of(value: Any) -> tuple[Any, ...]:
    function = plain(value)
    if isinstance(function, FunctionType):
        return id(function), function.__code__, repr(function.__defaults__)
    return (id(value),)


def _backend_state(backend: Any) -> tuple[Any, ...]:
    """Of a tokenizer of the tokenizers library. Truncation and padding are set by each call: left out."""
    if not hasattr(backend, "get_added_tokens_decoder"):
        return (id(backend),)
    parts = (backend.normalizer, backend.pre_tokenizer, backend.post_processor, backend.decoder)
    return (
        id(backend),
        backend.get_vocab_size(with_added_tokens=True),
        repr(backend.get_added_tokens_decoder()),
        tuple([None if part is None else part.__getstate__() for part in parts]),
        tuple([repr(getattr(backend.model, name, None)) for name in _OF_MODELS]),
    )
