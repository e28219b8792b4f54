"""The native tokenizer that is equal to a Hugging Face tokenizer object."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from fastsft import _C
from fastsft.originals.classes import replaced_methods_of, replaced_on
from fastsft.originals.functions import described, is_written_in
from fastsft.tokenizer.interfaces import (
    AddedToken,
    FastTokenizer,
    SlowTokenizer,
    is_fast,
    is_slow_llama,
)
from fastsft.tokenizer.settings import TokenizerSettings
from fastsft.tokenizer.tokenizer_state import PIECE_FLAGS, tokenizer_state

_known: weakref.WeakKeyDictionary[object, tuple[tuple[object, ...], _C.Tokenizer | None]] = (
    weakref.WeakKeyDictionary()
)
_ENCODING = ("encode", "encode_batch", "encode_with_offsets", "convert_tokens_to_ids", "pad_token_id")


def native_of(tokenizer: object) -> _C.Tokenizer | None:
    """Native equal of fastsft's, a slow LlamaTokenizer or a fast tokenizer as it is set up now, or None.

    Read from a slow object: vocab_file, legacy, added tokens, add_bos_token, add_eos_token, special tokens;
    from a fast one what backend_tokenizer.to_str() says: docs/spec/fastchat_labels.md, section 3.4. None
    where a script has changed a method of the object, its class or a base: then the object itself is called.
    ValueError for one of fastsft's that was changed, which nothing could call.
    """
    own = getattr(tokenizer, "native", None)
    if isinstance(own, _C.Tokenizer):
        _check_ours(tokenizer, own)
        return own
    return _remembered(tokenizer) if hasattr(tokenizer, "__dict__") else None


def needed_native(tokenizer: object, what: str) -> _C.Tokenizer:
    """`native_of`. ValueError, beginning with `what`, which needs one, where there is none."""
    native = native_of(tokenizer)
    if native is None:
        raise ValueError(
            f"{what}: {type(tokenizer).__name__} has no native equal in fastsft; load the tokenizer with "
            "fastsft.Tokenizer.from_pretrained(directory)"
        )
    return native


def why_called(tokenizer: object) -> str:
    """Why a tokenizer without a native equal has none, for a line to the user."""
    changed = replaced_methods_of(tokenizer)
    if not changed and is_slow_llama(tokenizer):
        return "LlamaTokenizer has settings or parts that fastsft does not have natively"
    if not changed:
        return f"{type(tokenizer).__name__} has no native equal in fastsft yet"
    return f"{changed[0].where} is {described(changed[0].value)}, which only the tokenizer itself can call"


def _remembered(tokenizer: object) -> _C.Tokenizer | None:
    state, known = tokenizer_state(tokenizer), _known.get(tokenizer)
    if known is None or known[0] != state:
        known = (state, _made(tokenizer))
        _known[tokenizer] = known
    return known[1]


def _made(tokenizer: object) -> _C.Tokenizer | None:
    if is_slow_llama(tokenizer):
        own = not replaced_methods_of(tokenizer) and _has_own_parts(tokenizer)
        return _build(tokenizer) if own else None
    if is_fast(tokenizer) and not replaced_methods_of(tokenizer):
        return _build_fast(tokenizer)
    return None


def _has_own_parts(tokenizer: SlowTokenizer) -> bool:
    """True if a slow tokenizer cuts with the library's Trie, and its pieces are those of its file."""
    pieces = tokenizer.sp_model
    encode = [vars(type(pieces)).get(name) for name in ("encode", "Encode", "piece_to_id", "PieceToId")]
    if replaced_methods_of(tokenizer.tokens_trie) or replaced_on(pieces):
        return False
    if not all(is_written_in(each, "sentencepiece") for each in encode):
        return False
    read = tokenizer.get_spm_processor(getattr(tokenizer, "from_slow", False))
    if any(getattr(pieces, name, None) != getattr(read, name, None) for name in PIECE_FLAGS):
        return False
    return bool(pieces.serialized_model_proto() == read.serialized_model_proto())


def _cuts_at(tokenizer: SlowTokenizer, added: Mapping[int, AddedToken]) -> bool:
    """True if texts are cut at these added tokens and at nothing else, and they have these ids."""
    if tokenizer._added_tokens_encoder != {token.content: number for number, token in added.items()}:
        return False
    trie = type(tokenizer.tokens_trie)()
    for token in added.values():
        trie.add(token.content)
    try:
        return bool(vars(tokenizer.tokens_trie) == vars(trie))
    except RecursionError:  # a token of thousands of characters
        return False


def _check_ours(tokenizer: object, native: _C.Tokenizer) -> None:
    """ValueError for a change that labels, which come from `native`, would not have."""
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
    """Added tokens that `decode` writes with spaces around; SentencePiece leaves control pieces out."""
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
    # A missing `legacy` means True, as in tokenizer_config.json.
    settings = TokenizerSettings(named=_names(tokenizer), legacy=bool(getattr(tokenizer, "legacy", True)))
    name = type(tokenizer).__name__
    try:
        text = tokenizer.backend_tokenizer.to_str()
    except Exception:  # the library has no other class for it: a part that a script has written
        return None
    try:
        return _C.parse_json_tokenizer(text, name, settings.native())
    except (ValueError, RuntimeError):
        return None  # the object itself is called instead, and a line says so
