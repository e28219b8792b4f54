"""Protocols with the attributes and methods that fastsft uses of other libraries' tokenizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeGuard


class ChatTokenizer(Protocol):
    """A fastsft Tokenizer, or a tokenizer of transformers."""

    @property
    def eos_token_id(self) -> int | None: ...
    @property
    def pad_token_id(self) -> int | None: ...
    @property
    def model_max_length(self) -> int: ...


class NamedTokens(ChatTokenizer, Protocol):
    """A ChatTokenizer with the special tokens and the chat template that a run may set."""

    pad_token: str | None
    chat_template: Any  # a text or, in transformers, a dictionary of texts

    @property
    def unk_token(self) -> str | None: ...
    @property
    def unk_token_id(self) -> int | None: ...
    @property
    def eos_token(self) -> str | None: ...


class CallableTokenizer(ChatTokenizer, Protocol):
    """A tokenizer of transformers. A call with a text or a list of texts returns `input_ids`."""

    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def legacy(self) -> bool: ...
    def __call__(self, text: str | list[str], /, **options: Any) -> Any: ...


class AddedToken(Protocol):
    """An AddedToken of the library tokenizers."""

    @property
    def content(self) -> str: ...
    @property
    def lstrip(self) -> bool: ...
    @property
    def rstrip(self) -> bool: ...
    @property
    def single_word(self) -> bool: ...


class Trie(Protocol):
    """A Trie of transformers: the added tokens at which a slow tokenizer cuts texts."""

    def __init__(self) -> None: ...
    def add(self, word: str, /) -> object: ...


class Pieces(Protocol):
    """A SentencePieceProcessor."""

    def serialized_model_proto(self) -> bytes: ...


class SlowTokenizer(Protocol):
    """The slow LlamaTokenizer of transformers."""

    sp_model: Pieces
    sp_model_kwargs: Mapping[str, object]
    tokens_trie: Trie
    vocab_file: str
    truncation_side: str
    legacy: bool
    add_prefix_space: bool
    add_bos_token: bool
    add_eos_token: bool
    split_special_tokens: bool
    vocab_size: int
    all_special_ids: Sequence[int]
    all_special_tokens: Sequence[str]
    additional_special_tokens: Sequence[str]
    bos_token_id: int | None
    eos_token_id: int | None
    unk_token_id: int | None
    added_tokens_decoder: Mapping[int, AddedToken]
    _added_tokens_encoder: Mapping[str, int]

    def get_spm_processor(self, from_slow: bool, /) -> Pieces: ...


class BackendModel(Protocol):
    """A model of the library tokenizers. An object of a script's own class may lack these methods."""

    def tokenize(self, sequence: str, /) -> Sequence[Any]: ...


class Backend(Protocol):
    """A Tokenizer of the library tokenizers."""

    model: BackendModel
    normalizer: object
    pre_tokenizer: object
    post_processor: object
    decoder: object

    def get_vocab_size(self, with_added_tokens: bool) -> int: ...
    def get_added_tokens_decoder(self) -> Mapping[int, AddedToken]: ...
    def to_str(self) -> str: ...


class FastTokenizer(Protocol):
    """A transformers tokenizer that wraps a Tokenizer of the library tokenizers."""

    backend_tokenizer: Backend
    truncation_side: str


def is_callable(tokenizer: object) -> TypeGuard[CallableTokenizer]:
    """True if the object can be called, as tokenizers of transformers can."""
    return callable(tokenizer)


def is_slow_llama(tokenizer: object) -> TypeGuard[SlowTokenizer]:
    """True for transformers' slow LlamaTokenizer, but not for a derived class."""
    kind = type(tokenizer)
    return (kind.__module__, kind.__name__) == (
        "transformers.models.llama.tokenization_llama",
        "LlamaTokenizer",
    )


def is_fast(tokenizer: object) -> TypeGuard[FastTokenizer]:
    """True if the object wraps a Tokenizer of the library tokenizers, or an object with its methods."""
    return hasattr(getattr(tokenizer, "backend_tokenizer", None), "to_str")


def is_backend(value: object) -> TypeGuard[Backend]:
    """True if the object is a Tokenizer of the library tokenizers, or has its methods."""
    return hasattr(value, "get_added_tokens_decoder")
