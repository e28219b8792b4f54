"""Digest of a tokenizer's vocabulary and merges, which are too much to compare each time a text is read."""

from __future__ import annotations

import hashlib
import weakref

from fastsft.tokenizer.interfaces import BackendModel

# Of slow byte-level tokenizers, dictionaries that the ids of a text are read from.
TABLES = ("encoder", "bpe_ranks", "byte_encoder")
# Its pieces change with nearly every change of a vocabulary or of merges, and take microseconds.
_PROBE = "▁The▁quickest▁brownĠfoxĠjumpedĠoverĠthirteenĠlazyĠdogs,Ġreturning▁functionalities▁internationally"

_looked_at: weakref.WeakKeyDictionary[object, bytes] = weakref.WeakKeyDictionary()


def look_at_model(tokenizer: object) -> None:
    """Digests the model of `tokenizer` as it is now; tens of milliseconds, so once per epoch at most."""
    content = _model_content(tokenizer)
    if content is not None:
        _looked_at[tokenizer] = content


def last_digest(tokenizer: object) -> bytes | None:
    """Of the last look at the model; None where there was none."""
    try:
        return _looked_at.get(tokenizer)
    except TypeError:  # nothing that can be looked at
        return None


def probe_of(model: BackendModel) -> tuple[int, ...] | str | None:
    """The ids of a text by a model of the tokenizers library, or the message why it gives none."""
    if getattr(model, "dropout", None):
        return None  # others each time
    try:
        return tuple([token.id for token in model.tokenize(_PROBE)])
    except Exception as fault:  # that library's own are of no other class
        return str(fault)


def probe_of_pieces(pieces: object) -> tuple[int, ...] | str | None:
    """The same of a SentencePieceProcessor, which a script may load again in its place; None for another."""
    encode = getattr(pieces, "EncodeAsIds", None)
    if encode is None or not hasattr(pieces, "serialized_model_proto"):
        return None
    if getattr(pieces, "_enable_sampling", False):
        return None
    try:
        return tuple(encode(_PROBE))
    except Exception as fault:  # a processor that has loaded nothing
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
