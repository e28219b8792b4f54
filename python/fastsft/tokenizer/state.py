"""Detect changes of a transformers tokenizer that may change its ids.

Vocabulary and merges are too large to compare for each text, so a digest of them is computed once per epoch.
"""

from __future__ import annotations

import hashlib
import weakref
from types import FunctionType

from fastsft.originals.classes import methods_of
from fastsft.originals.functions import plain
from fastsft.tokenizer.interfaces import BackendModel, is_backend

_SETTINGS = (
    "model_max_length", "padding_side", "truncation_side", "chat_template", "vocab_file",
    "legacy", "add_prefix_space", "add_bos_token", "add_eos_token", "sp_model_kwargs", "split_special_tokens",
    "do_lower_case", "clean_up_tokenization_spaces", "_added_tokens_decoder", "_added_tokens_encoder",
    "_extra_special_tokens",
)  # fmt: skip
_IDS = ("pad_token_id", "all_special_ids", "bos_token_id", "eos_token_id", "unk_token_id")
_OBJECTS = ("sp_model", "native", "_tokenizer", "tokenizer", "tokens_trie", "pat")
PIECE_FLAGS = (
    "_add_bos", "_add_eos", "_reverse", "_emit_unk_piece", "_enable_sampling", "_nbest_size", "_alpha",
    "_num_threads",
)  # fmt: skip
# Attributes whose classes are written in Python, so that a script can change their methods.
_IN_PYTHON = ("sp_model", "tokens_trie")
_OF_MODELS = (
    "dropout",
    "unk_token",
    "byte_fallback",
    "fuse_unk",
    "ignore_merges",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "max_input_chars_per_word",
)


def tokenizer_state(tokenizer: object) -> tuple[object, ...]:
    """Return a value that stays equal as long as the same object makes the same ids.

    The state contains the class, all methods' code, functions that a script has set on the object,
    special and added tokens, attributes that a script may set, and a fast tokenizer's backend parts.
    The last digest and the ids of a probe text stand for vocabulary and merges. If a tokenizer has parts that
    cannot be compared, no two of its states are equal.
    """
    attributes = getattr(tokenizer, "__dict__", {})
    return (
        id(tokenizer),
        last_digest(tokenizer),
        methods_of(type(tokenizer)),
        tuple([(name, *_code_of(value)) for name, value in attributes.items() if callable(value)]),
        tuple([(name, value) for name, value in attributes.items() if isinstance(value, bool | str)]),
        tuple([repr(getattr(tokenizer, name, None)) for name in _SETTINGS]),
        _special_tokens(tokenizer),
        tuple([_part_state(attributes.get(name)) for name in _OBJECTS]),
        tuple([methods_of(type(attributes.get(name))) for name in _IN_PYTHON]),
        tuple([(id(attributes[name]), len(attributes[name])) for name in TABLES if name in attributes]),
        _backend_state(getattr(tokenizer, "backend_tokenizer", None)),
    )


def is_comparable(tokenizer: object) -> bool:
    """True if all parts of a tokenizer can be compared. Objects of a script's own classes cannot."""
    return tokenizer_state(tokenizer) == tokenizer_state(tokenizer)


def _part_state(part: object) -> tuple[object, ...]:
    own = {name: _code_of(value) for name, value in getattr(part, "__dict__", {}).items() if callable(value)}
    return id(part), tuple(own.items()), *_content_of(part)


def _content_of(part: object) -> tuple[object, ...]:
    """Return a Trie's state (its words) or a SentencePieceProcessor's (its settings and probe ids)."""
    attributes = getattr(part, "__dict__", {})
    cut_at = attributes.get("_tokens")
    return (
        frozenset(cut_at) if isinstance(cut_at, set) else None,
        id(attributes.get("data")),
        id(attributes.get("_processor")),
        tuple([repr(attributes.get(name)) for name in PIECE_FLAGS]),
        probe_of_pieces(part),
    )


def _special_tokens(tokenizer: object) -> str:
    """Return the special tokens as a text, in which changes show.

    The text has the map of the tokens' texts, or the ids if the tokenizer has no map. Ids are the second
    choice, because looking up the id of a missing token may recurse without end.
    """
    texts = getattr(tokenizer, "_special_tokens_map", None)
    return repr([getattr(tokenizer, name, None) for name in _IDS] if texts is None else texts)


def _code_of(value: object) -> tuple[object, ...]:
    function = plain(value)
    if isinstance(function, FunctionType):
        return id(function), function.__code__, repr(function.__defaults__)
    return (id(value),)


def _backend_state(backend: object) -> tuple[object, ...]:
    """Return the state of a tokenizers.Tokenizer without truncation and padding, which each call sets."""
    if not is_backend(backend):
        return (id(backend),)
    parts = (backend.normalizer, backend.pre_tokenizer, backend.post_processor, backend.decoder)
    model = backend.model
    return (
        id(backend),
        backend.get_vocab_size(with_added_tokens=False),  # with True, the library would copy the vocabulary
        repr(backend.get_added_tokens_decoder()),
        tuple([None if part is None else _serialized(part) for part in parts]),
        tuple([repr(getattr(model, name, None)) for name in _OF_MODELS]),
        probe_of(model),
    )


def _serialized(part: object) -> object:
    try:
        state: object = part.__getstate__()
        return state
    except Exception:  # raised by the library if the part is an object of a script's own class
        return object()


# The dictionaries in which slow byte-level BPE tokenizers look up ids.
TABLES = ("encoder", "bpe_ranks", "byte_encoder")
# A text whose ids change if vocabulary or merges change, with few exceptions. It is encoded in microseconds.
_PROBE = "▁The▁quickest▁brownĠfoxĠjumpedĠoverĠthirteenĠlazyĠdogs,Ġreturning▁functionalities▁internationally"

_looked_at: weakref.WeakKeyDictionary[object, bytes] = weakref.WeakKeyDictionary()


def digest_model(tokenizer: object) -> None:
    """Compute the digest of the tokenizer's present model.

    The computation takes tens of milliseconds, so it should run at most once per epoch.
    """
    content = _model_content(tokenizer)
    if content is not None:
        _looked_at[tokenizer] = content


def last_digest(tokenizer: object) -> bytes | None:
    """Return the last digest of the tokenizer's model; None if no digest was computed."""
    try:
        return _looked_at.get(tokenizer)
    except TypeError:  # the object does not support weak references
        return None


def probe_of(model: BackendModel) -> tuple[int, ...] | str | None:
    """Encode the probe text with a model of the library tokenizers. Return the ids or the error message.

    None if the model has dropout, which makes ids random.
    """
    if getattr(model, "dropout", None):
        return None
    try:
        return tuple([token.id for token in model.tokenize(_PROBE)])
    except Exception as fault:  # the library raises plain exceptions
        return str(fault)


def probe_of_pieces(pieces: object) -> tuple[int, ...] | str | None:
    """Encode the probe text with a SentencePieceProcessor. Return the ids or the error message.

    None for other objects, and if sampling makes ids random.
    """
    encode = getattr(pieces, "EncodeAsIds", None)
    if encode is None or not hasattr(pieces, "serialized_model_proto"):
        return None
    if getattr(pieces, "_enable_sampling", False):
        return None
    try:
        return tuple(encode(_PROBE))
    except Exception as fault:  # the processor may have loaded no model
        return str(fault)


def _model_content(tokenizer: object) -> bytes | None:
    attributes = getattr(tokenizer, "__dict__", {})
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    pieces = attributes.get("sp_model")
    content: bytes
    tables = [attributes[name] for name in TABLES if type(attributes.get(name)) is dict]
    if model is not None and type(model).__module__ == "tokenizers.models":
        content = model.__getstate__()
    elif pieces is not None and hasattr(pieces, "serialized_model_proto"):
        content = pieces.serialized_model_proto()
    elif tables:
        content = repr([list(table.items()) for table in tables]).encode("utf-8", "surrogatepass")
    else:
        return None
    return hashlib.blake2b(content, digest_size=16).digest()
