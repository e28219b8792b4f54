"""The native tokenizer that stands for a Hugging Face tokenizer object."""

from __future__ import annotations

import weakref
from typing import Any

from fastsft import _C

_known: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()
_LLAMA = ("transformers.models.llama.tokenization_llama", "LlamaTokenizer")


def native_of(tokenizer: Any) -> Any | None:
    """The native equal of ours or of a slow LlamaTokenizer as it is set up now; None when there is none.

    Read from the object: vocab_file, legacy, added tokens, add_bos_token, add_eos_token, special tokens
    (fastchat_labels.md, section 3.4).
    """
    own = getattr(tokenizer, "native", None)
    if isinstance(own, _C.Tokenizer):
        return own
    if (type(tokenizer).__module__, type(tokenizer).__name__) != _LLAMA:
        return None
    state = _state(tokenizer)
    known = _known.get(tokenizer)
    if known is None or known[0] != state:
        known = (state, _build(tokenizer))
        _known[tokenizer] = known
    return known[1]


def called_tokenizer(tokenizer: Any) -> Any:
    """A tokenizer object wrapped so that it is called for ids itself, as FastChat calls it."""
    ids = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    return _C.CalledTokenizer(
        lambda text: tokenizer(text).input_ids,
        lambda: bool(tokenizer.legacy),
        _C.NamedIds(*(-1 if i is None else i for i in ids)),
    )


def _state(tokenizer: Any) -> tuple[Any, ...]:
    added = tuple(
        (i, t.content, t.lstrip, t.rstrip, t.single_word) for i, t in tokenizer.added_tokens_decoder.items()
    )
    return (
        tokenizer.vocab_file,
        tokenizer.legacy,
        tokenizer.add_prefix_space,
        tokenizer.add_bos_token,
        tokenizer.add_eos_token,
        tuple(tokenizer.all_special_ids),
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
        added,
        repr(tokenizer.sp_model_kwargs),
        tokenizer.split_special_tokens,
        tokenizer.truncation_side,
    )


def _build(tokenizer: Any) -> Any | None:
    added = tokenizer.added_tokens_decoder
    plain = not tokenizer.sp_model_kwargs and not tokenizer.split_special_tokens
    if not plain or tokenizer.truncation_side != "right" or any(t.single_word for t in added.values()):
        return None
    settings = _C.LlamaSettings()
    settings.legacy = bool(tokenizer.legacy)
    settings.add_prefix_space = bool(tokenizer.add_prefix_space)
    settings.add_bos = bool(tokenizer.add_bos_token)
    settings.add_eos = bool(tokenizer.add_eos_token)
    settings.added = [_C.AddedToken(i, t.content, t.lstrip, t.rstrip) for i, t in added.items()]
    settings.special_ids = set(tokenizer.all_special_ids)
    ids = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    settings.named = _C.NamedIds(*(-1 if i is None else i for i in ids))
    try:
        return _C.make_llama_tokenizer(tokenizer.vocab_file, settings)
    except (ValueError, RuntimeError):
        return None  # the object itself is called instead, and a line says so
