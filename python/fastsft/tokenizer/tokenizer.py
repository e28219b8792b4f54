"""The class Tokenizer, which runs the tokenizer of a Hugging Face model directory natively."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft import _C
from fastsft.runtime.given_types import check_path, explain_missing, explained_call
from fastsft.runtime.output_files import replace_file
from fastsft.runtime.regular_files import check_regular, file_inside, read_json_object
from fastsft.runtime.ways_out import way_out
from fastsft.tokenizer.files import (
    NAMES,
    TEMPLATES,
    KeptFiles,
    TrainedTemplate,
    read_chat_template,
    write_compatible_config,
)
from fastsft.tokenizer.json_tokenizer import (
    has_byte_pair_files,
    load_byte_pair_tokenizer,
    load_json_tokenizer,
)
from fastsft.tokenizer.settings import read_settings

_NO_LENGTH = int(1e30)  # transformers' model_max_length if no file of the directory sets a length


class Tokenizer:
    """The tokenizer of a Hugging Face model directory.

    With a tokenizer.model, the ids are those of transformers' slow LlamaTokenizer (SentencePiece BPE). With a
    tokenizer.json, they are those of the library tokenizers: byte-level BPE with the split patterns of GPT-2,
    Llama 3, Qwen 2 and Qwen 3 runs natively, and the library runs all other tokenizers, with a warning. With
    vocab.json and merges.txt of a GPT2Tokenizer (OPT, GPT-2) or Qwen2Tokenizer, they are those of the
    tokenizer.json that transformers makes from these files.

    model_max_length: the most ids of a row. padding_side: "right" or "left". vocab_size: number of ids, with
    added tokens. chat_template: the Jinja text in the files, or None. bos_token_id, bos_token and so on: ids
    and texts of the special tokens; None if a token is missing.
    """

    def __init__(
        self,
        native: _C.Tokenizer,
        directory: str | Path,
        *,
        model_max_length: int | None = None,
        padding_side: str = "right",
        chat_template: str | None = None,
    ) -> None:
        self.native = native
        self.directory = Path(directory).absolute()
        self.files = KeptFiles.from_directory(directory)
        self.legacy = native.legacy
        self.add_bos_token: bool = native.adds_bos
        self.add_eos_token: bool = native.adds_eos
        self.model_max_length: int = model_max_length or _NO_LENGTH
        self.padding_side = padding_side
        self.chat_template = chat_template
        self._pad_token_id: int = native.named.pad
        # The chat template that save_pretrained writes; None: as in the loaded files.
        self.trained_template: TrainedTemplate | None = None

    @classmethod
    @explained_call
    def from_pretrained(
        cls,
        directory: str | Path,
        *,
        model_max_length: int | None = None,
        padding_side: str | None = None,
    ) -> Tokenizer:
        """Load the tokenizer from tokenizer.model, from tokenizer.json, or from vocab.json and merges.txt.

        The arguments override the settings in the directory's JSON files. ValueError if files are missing,
        damaged, or need unsupported features.
        """
        check_path(directory, "Tokenizer.from_pretrained", "give the directory of a model")
        root = Path(directory)
        if root.is_file():
            raise ValueError(
                f"{directory}: expected a directory, got a file; name its directory, {root.parent}"
            )
        if not root.is_dir():
            raise ValueError(
                f"{directory}: expected a directory with the files of a tokenizer, got none; a model of the "
                "hub is one after: hf download NAME --local-dir DIR"
            )
        with way_out("correct the file, or copy the tokenizer's files from the model that it was made of"):
            tokenizer = cls._from_directory(root)
        if model_max_length is not None:
            tokenizer.model_max_length = model_max_length
        if padding_side is not None:
            tokenizer.padding_side = padding_side
        if tokenizer.padding_side not in ("right", "left"):
            raise ValueError(f'padding_side must be "right" or "left", got "{tokenizer.padding_side}"')
        return tokenizer

    if not TYPE_CHECKING:  # a type checker finds such names itself

        def __getattr__(self, name: str) -> object:
            more = "transformers' AutoTokenizer.from_pretrained opens the same directory, with more methods"
            return explain_missing(self, name, more)

    @classmethod
    def _from_directory(cls, root: Path) -> Tokenizer:
        templates = [f"{TEMPLATES}/{path.name}" for path in (root / TEMPLATES).glob("*.jinja")]
        for name in [*NAMES, *templates]:
            path = file_inside(root, name)
            if path is not None:
                check_regular(path, "a file of a tokenizer")
        has_model = (root / "tokenizer.model").exists()
        if not has_model and ((root / "tokenizer.json").exists() or has_byte_pair_files(root)):
            return cls._from_json(root)
        return cls._from_model(root)  # raises the error if there is no tokenizer file

    @classmethod
    def _from_model(cls, root: Path) -> Tokenizer:
        native, files = _C.load_tokenizer(str(root))
        return cls(
            native,
            root,
            model_max_length=files.model_max_length if files.model_max_length > 0 else None,
            padding_side=files.padding_side,
            chat_template=read_chat_template(root),
        )

    @classmethod
    def _from_json(cls, root: Path) -> Tokenizer:
        settings, path = read_settings(root), root / "tokenizer.json"
        is_json = path.exists()
        return cls(
            load_json_tokenizer(path, settings) if is_json else load_byte_pair_tokenizer(root, settings),
            root,
            model_max_length=settings.model_max_length,
            padding_side=settings.padding_side,
            chat_template=read_chat_template(root),
        )

    def encode(
        self, text: str, add_special_tokens: bool = False, *, split_special_tokens: bool = False
    ) -> list[int]:
        """Return the ids of `text`.

        add_special_tokens: add BOS and EOS according to the tokenizer's settings. split_special_tokens: treat
        special tokens in the text, such as "</s>", as plain text. ValueError if the text has a lone
        surrogate.
        """
        if not isinstance(text, str):
            raise TypeError(f"encode: expected a text, got {text!r:.40}; encode_batch takes a list of texts")
        ids = self.native.encode(text.encode(), split_special_tokens)
        return self._surround(ids) if add_special_tokens else ids

    def encode_batch(
        self, texts: Iterable[str], add_special_tokens: bool = False, *, split_special_tokens: bool = False
    ) -> list[list[int]]:
        """Return each text's ids, computed by several threads. The arguments are as in `encode`."""
        if isinstance(texts, str):
            raise TypeError(
                f"encode_batch: expected a list of texts, got the text {texts!r:.40}; encode takes it"
            )
        rows = self.native.encode_batch([text.encode() for text in texts], split_special_tokens)
        return [self._surround(ids) for ids in rows] if add_special_tokens else rows

    def encode_with_offsets(
        self, text: str, *, split_special_tokens: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids and, for each id, its range (begin, end) of UTF-8 bytes in the text.

        Together the ranges cover the whole text.
        """
        return self.native.encode_with_offsets(text.encode(), split_special_tokens)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Return the text of `ids`, as transformers' `decode` does. ValueError for an unknown id."""
        if isinstance(ids, str):
            raise TypeError(
                f"decode: expected ids of tokens, got the text {ids!r:.40}; encode makes ids of it"
            )
        try:
            numbers = [int(i) for i in ids]
        except (TypeError, ValueError):
            raise TypeError(
                f"decode: expected ids of tokens, as in [1, 2], got {ids!r:.40}; encode makes ids of a text"
            ) from None
        return self.native.decode(numbers, skip_special_tokens)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """Return a token's id. token: its text in the vocabulary. None if there is no such token."""
        if not isinstance(token, str):
            raise TypeError(
                f"convert_tokens_to_ids: expected the text of one token, got {token!r:.40}; give it in quotes"
            )
        return _or_none(self.native.find_token(token))

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the texts of `ids` in the vocabulary."""
        return [self.native.token_text(int(i)) for i in ids]

    @property
    def vocab_size(self) -> int:
        return self.native.vocab_size

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return _or_none(self.native.named.bos)

    @property
    def eos_token_id(self) -> int | None:
        return _or_none(self.native.named.eos)

    @property
    def unk_token_id(self) -> int | None:
        return _or_none(self.native.named.unk)

    @property
    def pad_token_id(self) -> int | None:
        return _or_none(self._pad_token_id)

    @pad_token_id.setter
    def pad_token_id(self, token_id: int | None) -> None:
        if token_id is not None and not 0 <= token_id < self.vocab_size:
            raise ValueError(
                f"pad_token_id: expected None or an id below {self.vocab_size}, got {token_id}; "
                "convert_tokens_to_ids gives that of a token"
            )
        self._pad_token_id = -1 if token_id is None else token_id

    @property
    def bos_token(self) -> str | None:
        return self._text_of(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        return self._text_of(self.eos_token_id)

    @property
    def unk_token(self) -> str | None:
        return self._text_of(self.unk_token_id)

    @property
    def pad_token(self) -> str | None:
        return self._text_of(self.pad_token_id)

    @pad_token.setter
    def pad_token(self, token: str | None) -> None:
        token_id = -1 if token is None else self.native.find_token(token)
        if token is not None and token_id < 0:
            raise ValueError(f'pad_token "{token}" is not in the vocabulary; name one of its tokens')
        self._pad_token_id = token_id

    def save_pretrained(self, directory: str | Path) -> list[str]:
        """Write the tokenizer files, and return their names.

        The files are written as they were loaded, with the present pad_token, model_max_length and
        padding_side. If `trained_template` is set, that chat template replaces the loaded template.
        """
        check_path(directory, "save_pretrained", "give the directory to write into")
        target = Path(directory)
        if target.is_file():
            told = "expected a directory to write into, got a file; choose another"
            raise FileExistsError(errno.EEXIST, told, str(directory))
        target.mkdir(parents=True, exist_ok=True)
        self.files.write(target)
        changes: dict[str, object] = {
            "model_max_length": self.model_max_length,
            "padding_side": self.padding_side,
        }
        _patch(target / "tokenizer_config.json", {**changes, "pad_token": self.pad_token})
        _patch(target / "special_tokens_map.json", {"pad_token": self.pad_token})
        write_compatible_config(target)
        written = [] if self.trained_template is None else self.trained_template.write(target)
        others = sorted((target / TEMPLATES).glob("*.jinja"))
        return [
            *(name for name in NAMES if (target / name).exists()),
            *(name for name in written if name not in NAMES),
            *(f"{TEMPLATES}/{path.name}" for path in others),
        ]

    def _surround(self, ids: list[int]) -> list[int]:
        first = [self.native.named.bos] if self.add_bos_token else []
        return [*first, *ids, *([self.native.named.eos] if self.add_eos_token else [])]

    def _text_of(self, token_id: int | None) -> str | None:
        return None if token_id is None else self.native.token_text(token_id)


def _or_none(token_id: int) -> int | None:
    return token_id if token_id >= 0 else None


def _content(token: object) -> object:
    return token.get("content") if isinstance(token, dict) else token


def _patch(path: Path, changes: dict[str, object]) -> None:
    """Set the values `changes` in a JSON file. The file is written only if a value differs."""
    content = read_json_object(path) if path.exists() else {}
    differing = {key: value for key, value in changes.items() if _content(content.get(key)) != value}
    if differing:
        replace_file(path, json.dumps({**content, **differing}, indent=2, ensure_ascii=False) + "\n")
