"""The native tokenizer that stands for a Hugging Face tokenizer object."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from fastsft import _C
from fastsft.tokenizers.settings import TokenizerSettings

_known: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()
_LLAMA = ("transformers.models.llama.tokenization_llama", "LlamaTokenizer")


def native_of(tokenizer: Any) -> Any | None:
    """The native equal of ours, of a slow LlamaTokenizer or of a fast tokenizer as it is set up now, or None.

    Read from a slow object: vocab_file, legacy, added tokens, add_bos_token, add_eos_token, special tokens;
    from a fast one what backend_tokenizer.to_str() says (fastchat_labels.md, section 3.4).
    """
    own = getattr(tokenizer, "native", None)
    if isinstance(own, _C.Tokenizer):
        return own
    if (type(tokenizer).__module__, type(tokenizer).__name__) == _LLAMA:
        return _remembered(tokenizer, _state(tokenizer), _build)
    if hasattr(getattr(tokenizer, "backend_tokenizer", None), "to_str"):
        return _remembered(tokenizer, _fast_state(tokenizer), _build_fast)
    return None


def _remembered(tokenizer: Any, state: tuple[Any, ...], build: Callable[[Any], Any | None]) -> Any | None:
    known = _known.get(tokenizer)
    if known is None or known[0] != state:
        known = (state, build(tokenizer))
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


def _fast_state(tokenizer: Any) -> tuple[Any, ...]:
    backend = tokenizer.backend_tokenizer
    parts = (backend.normalizer, backend.pre_tokenizer, backend.post_processor, backend.decoder)
    return (
        id(backend),
        backend.get_vocab_size(with_added_tokens=True),
        tuple(repr(token) for token in tokenizer.added_tokens_decoder.items()),
        tuple(part.__getstate__() if part is not None else None for part in parts),
        tuple(_names(tokenizer).items()),
        getattr(tokenizer, "legacy", None),
        getattr(tokenizer, "split_special_tokens", False),
        tokenizer.truncation_side,
    )


def _names(tokenizer: Any) -> dict[str, str]:
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    texts = {name: getattr(tokenizer, name, None) for name in names}
    return {name: text for name, text in texts.items() if text is not None}


def _build_fast(tokenizer: Any) -> Any | None:
    if getattr(tokenizer, "split_special_tokens", False) or tokenizer.truncation_side != "right":
        return None
    # A tokenizer without `legacy` counts as one where it is true, as a config without the key does.
    settings = TokenizerSettings(named=_names(tokenizer), legacy=bool(getattr(tokenizer, "legacy", True)))
    name = type(tokenizer).__name__
    try:
        return _C.parse_json_tokenizer(tokenizer.backend_tokenizer.to_str(), name, settings.native())
    except (ValueError, RuntimeError):
        return None  # the object itself is called instead, and a line says so
