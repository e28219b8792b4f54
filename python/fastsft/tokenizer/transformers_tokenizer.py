"""Find a native tokenizer with the same ids as a transformers tokenizer, or call that tokenizer itself."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastsft import _C
from fastsft.originals.classes import Method, replaced_methods_of, replaced_on
from fastsft.originals.functions import described, is_written_in
from fastsft.runtime.messages import warn_once
from fastsft.script_names.module_names import rebound_data_names
from fastsft.tokenizer.interfaces import (
    AddedToken,
    CallableTokenizer,
    FastTokenizer,
    SlowTokenizer,
    is_callable,
    is_fast,
    is_slow_llama,
)
from fastsft.tokenizer.settings import TokenizerSettings
from fastsft.tokenizer.state import PIECE_FLAGS, tokenizer_state
from fastsft.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_known: weakref.WeakKeyDictionary[object, tuple[tuple[object, ...], _C.Tokenizer | None]] = (
    weakref.WeakKeyDictionary()
)
_ENCODING = ("encode", "encode_batch", "encode_with_offsets", "convert_tokens_to_ids", "pad_token_id")


def find_native_tokenizer(tokenizer: object) -> _C.Tokenizer | None:
    """Return a native tokenizer with the same ids as a tokenizer object; None if there is none.

    The object may be fastsft's Tokenizer, a slow LlamaTokenizer, or a fast tokenizer of transformers. For a
    slow tokenizer, the native tokenizer is made from vocab_file, legacy, added tokens, add_bos_token,
    add_eos_token and special tokens; for a fast tokenizer, from backend_tokenizer.to_str()
    (docs/spec/fastchat_labels.md, section 3.4). If a script has replaced a method of the object, its class or
    a base class, the result is None, and the caller calls the object itself. ValueError if a script has
    changed a fastsft Tokenizer, because such an object cannot be called.
    """
    own = getattr(tokenizer, "native", None)
    if isinstance(own, _C.Tokenizer):
        _check_ours(tokenizer, own)
        return own
    return _remembered(tokenizer) if hasattr(tokenizer, "__dict__") else None


def require_native_tokenizer(tokenizer: object, what: str) -> _C.Tokenizer:
    """Return the native tokenizer with the same ids. ValueError if there is none.

    what: the feature that needs a native tokenizer; begins the message.
    """
    native = find_native_tokenizer(tokenizer)
    if native is None:
        raise ValueError(
            f"{what}: {type(tokenizer).__name__} has no native equal in fastsft; load the tokenizer with "
            "fastsft.Tokenizer.from_pretrained(directory)"
        )
    return native


def why_not_native(tokenizer: object) -> str:
    """Return the reason why a tokenizer has no native equivalent, for a message."""
    changed = replaced_methods_of(tokenizer)
    if not changed and is_slow_llama(tokenizer):
        return "LlamaTokenizer has settings or parts that fastsft does not have natively"
    if not changed:
        return f"{type(tokenizer).__name__} has no native equal in fastsft yet"
    return f"{changed[0].where} is {described(changed[0].value)}, which only the tokenizer itself can call"


def _remembered(tokenizer: object) -> _C.Tokenizer | None:
    state, remembered = tokenizer_state(tokenizer), _known.get(tokenizer)
    if remembered is None or remembered[0] != state:
        remembered = (state, _made(tokenizer))
        _known[tokenizer] = remembered
    return remembered[1]


def _made(tokenizer: object) -> _C.Tokenizer | None:
    if is_slow_llama(tokenizer):
        own = not replaced_methods_of(tokenizer) and _has_own_parts(tokenizer)
        return _build(tokenizer) if own else None
    if is_fast(tokenizer) and not replaced_methods_of(tokenizer):
        return _build_fast(tokenizer)
    return None


def _has_own_parts(tokenizer: SlowTokenizer) -> bool:
    """True if a script has changed neither the Trie nor the SentencePiece model of a slow tokenizer."""
    pieces = tokenizer.sp_model
    encode = [vars(type(pieces)).get(name) for name in ("encode", "Encode", "piece_to_id", "PieceToId")]
    if replaced_methods_of(tokenizer.tokens_trie) or replaced_on(pieces):
        return False
    if not all(is_written_in(method, "sentencepiece") for method in encode):
        return False
    read = tokenizer.get_spm_processor(getattr(tokenizer, "from_slow", False))
    if any(getattr(pieces, name, None) != getattr(read, name, None) for name in PIECE_FLAGS):
        return False
    return bool(pieces.serialized_model_proto() == read.serialized_model_proto())


def _cuts_at(tokenizer: SlowTokenizer, added: Mapping[int, AddedToken]) -> bool:
    """True if `added` has exactly the tokens at which the tokenizer cuts texts, with their ids."""
    if tokenizer._added_tokens_encoder != {token.content: number for number, token in added.items()}:
        return False
    trie = type(tokenizer.tokens_trie)()
    for token in added.values():
        trie.add(token.content)
    try:
        return bool(vars(tokenizer.tokens_trie) == vars(trie))
    except RecursionError:  # a token has thousands of characters
        return False


def _check_ours(tokenizer: object, native: _C.Tokenizer) -> None:
    """Raise ValueError if a script has changed a fastsft Tokenizer in a way that would have no effect.

    Labels are made by `native`, so a replaced method would never be called.
    """
    for method in replaced_methods_of(tokenizer):
        if method.where.rpartition(".")[2] in _ENCODING or "object's" in method.where:
            raise ValueError(
                f"{method.where} is {described(method.value)}, which would never be called: labels are made "
                "by fastsft's own tokenizer; take the change back, or give a tokenizer of transformers"
            )
    for name, value in (("add_bos_token", native.adds_bos), ("add_eos_token", native.adds_eos)):
        if getattr(tokenizer, name, value) != value:
            raise ValueError(
                f"{type(tokenizer).__name__}.{name} was set to {getattr(tokenizer, name)}, expected {value}, "
                f'as it was loaded: set "{name}" in tokenizer_config.json and load it again'
            )


def _build(tokenizer: SlowTokenizer) -> _C.Tokenizer | None:
    added = tokenizer.added_tokens_decoder
    plain = not (
        tokenizer.sp_model_kwargs
        or tokenizer.split_special_tokens
        or getattr(tokenizer, "do_lower_case", False)
    )
    if (
        not plain
        or not _cuts_at(tokenizer, added)
        or tokenizer.truncation_side != "right"
        or any(t.single_word for t in added.values())
    ):
        return None
    settings = _C.LlamaSettings()
    settings.legacy = bool(tokenizer.legacy)
    settings.add_prefix_space = bool(tokenizer.add_prefix_space)
    settings.add_bos = bool(tokenizer.add_bos_token)
    settings.add_eos = bool(tokenizer.add_eos_token)
    settings.added = [_C.AddedToken(i, t.content, t.lstrip, t.rstrip) for i, t in added.items()]
    settings.special_ids = set(tokenizer.all_special_ids)
    settings.spaced_ids = _spaced_ids(tokenizer, added)
    ids = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    settings.named = _C.NamedIds(*(-1 if i is None else i for i in ids))
    try:
        return _C.make_llama_tokenizer(tokenizer.vocab_file, settings)
    except (ValueError, RuntimeError):
        return None  # the object itself is called instead, and a line says so


def _spaced_ids(tokenizer: SlowTokenizer, added: Mapping[int, AddedToken]) -> set[int]:
    """Return the ids of the added tokens that `decode` surrounds with spaces."""
    special, more = set(tokenizer.all_special_tokens), set(tokenizer.additional_special_tokens)
    pieces = tokenizer.vocab_size
    return {
        number
        for number, token in added.items()
        if token.content not in special or (token.content in more and number >= pieces)
    }


def _names(tokenizer: FastTokenizer) -> dict[str, str]:
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    texts = {name: getattr(tokenizer, name, None) for name in names}
    return {name: text for name, text in texts.items() if text is not None}


def _build_fast(tokenizer: FastTokenizer) -> _C.Tokenizer | None:
    if getattr(tokenizer, "split_special_tokens", False) or tokenizer.truncation_side != "right":
        return None
    # In tokenizer_config.json, too, `legacy` is True by default.
    settings = TokenizerSettings(named=_names(tokenizer), legacy=bool(getattr(tokenizer, "legacy", True)))
    name = type(tokenizer).__name__
    try:
        text = tokenizer.backend_tokenizer.to_str()
    except Exception:  # raised by the library if a part is an object of a script's own class
        return None
    try:
        return _C.parse_json_tokenizer(text, name, settings.native())
    except (ValueError, RuntimeError):
        return None  # the object itself is called instead, and a line says so


def called_tokenizer(tokenizer: object) -> _C.PythonTokenizer:
    """Return an object through which the core calls `tokenizer` to make labels.

    FastChat calls a tokenizer both with a single text and with a batch that is padded and truncated. If a
    script has changed a method and a text has different ids in the two calls, ValueError is raised. TypeError
    if `tokenizer` cannot be called.
    """
    if not is_callable(tokenizer):
        raise TypeError(
            f"expected a tokenizer of fastsft or transformers, got {type(tokenizer).__name__}, which cannot "
            "be called"
        )
    ids = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    changed = replaced_methods_of(tokenizer)
    encode = _CheckedCalls(tokenizer, changed[0]) if changed else lambda text: tokenizer(text).input_ids
    return _C.PythonTokenizer(
        encode,
        lambda: bool(tokenizer.legacy),
        _C.NamedIds(*(-1 if i is None else i for i in ids)),
    )


class _CheckedCalls:
    """A function that returns a text's ids, and checks that a call with a batch gives the same ids."""

    def __init__(self, tokenizer: CallableTokenizer, changed: Method) -> None:
        self._tokenizer, self._changed = tokenizer, changed
        empty = list(tokenizer("").input_ids)
        self._adds_eos = 0 < len(empty) <= 2 and empty[-1] == tokenizer.eos_token_id

    def __call__(self, text: str) -> list[int]:
        alone = list(self._tokenizer(text).input_ids)
        width = self._tokenizer.model_max_length
        in_batch = self._tokenizer(
            [text], return_tensors="pt", padding="max_length", max_length=width, truncation=True
        ).input_ids[0]
        if in_batch.tolist() != self._padded(alone, width):
            raise ValueError(
                f"{self._changed.where} is {described(self._changed.value)}, and a text has other ids alone "
                "than in a batch with padding and truncation, which FastChat uses both: set "
                "fastsft.train.preprocess to a function that makes the labels"
            )
        return alone

    def _padded(self, ids: list[int], width: int) -> list[int | None]:
        cut = ids[:width]
        if len(ids) > width and self._adds_eos:
            cut[-1] = ids[-1]
        return [*cut, *([self._tokenizer.pad_token_id] * (width - len(cut)))]


def run_tokenizer(
    directory: str, model_max_length: int, padding_side: str
) -> Tokenizer | PreTrainedTokenizerBase:
    """Return a run's tokenizer.

    It is fastsft's Tokenizer. If a script has replaced functions that make the data, it is transformers' slow
    tokenizer, as in FastChat. ValueError if transformers is needed and not installed.
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
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        directory, use_fast=False, model_max_length=model_max_length, padding_side=padding_side
    )
    return loaded
