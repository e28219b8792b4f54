"""Read the settings that accompany a tokenizer.json, by the rules of transformers' fast tokenizers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.runtime.regular_files import file_inside, read_json_object

if TYPE_CHECKING:
    from fastsft import _C

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_END = "<|endoftext|>"
# The special tokens that tokenizer classes of transformers 4.57 use if the files name none.
_DEFAULTS = {
    "GPT2Tokenizer": {"bos_token": _END, "eos_token": _END, "unk_token": _END},
    "Qwen2Tokenizer": {"eos_token": _END, "unk_token": _END, "pad_token": _END},
    "GPTNeoXTokenizer": {"bos_token": _END, "eos_token": _END, "unk_token": _END},
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
}
# Model types (regex) -> tokenizer class if the files name none.
_CLASSES = {r"gpt2|opt": "GPT2Tokenizer", r"qwen[23]": "Qwen2Tokenizer"}
# Defaults of (add_bos_token, add_eos_token). In these classes the two settings decide whether BOS and EOS are
# added; in all other classes tokenizer.json decides.
_AROUND = {
    "CodeLlamaTokenizer": (True, False),
    "CohereTokenizer": (True, False),
    "GemmaTokenizer": (True, False),
    "GPTNeoXTokenizer": (False, False),
    "LlamaTokenizer": (True, False),
}
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


@dataclass
class TokenizerSettings:
    """The settings of a tokenizer.

    named: texts of special tokens by name ("bos_token", ...). added: tokens to add to those in
    tokenizer.json. add_prefix_space: put a space before a text; None: as in tokenizer.json. adds_bos,
    adds_eos: add BOS before a text, and EOS after it; None: the post-processor in tokenizer.json decides.
    legacy: as in LlamaTokenizer. model_max_length: the most ids of a row, or None.
    """

    named: dict[str, str] = field(default_factory=dict)
    added: list[_C.GivenToken] = field(default_factory=list)
    add_prefix_space: bool | None = None
    adds_bos: bool | None = None
    adds_eos: bool | None = None
    legacy: bool = True
    model_max_length: int | None = None
    padding_side: str = "right"

    def native(self) -> _C.JsonTokenizerSettings:
        """Return the settings as an object of the C++ core."""
        from fastsft import _C

        settings = _C.JsonTokenizerSettings()
        settings.added = self.added
        settings.add_prefix_space = self.add_prefix_space
        settings.adds_bos, settings.adds_eos = self.adds_bos, self.adds_eos
        settings.legacy = self.legacy
        for name in ("bos", "eos", "unk", "pad"):
            setattr(settings, name, self.named.get(f"{name}_token", ""))
        return settings


def read_settings(directory: Path) -> TokenizerSettings:
    """Read tokenizer_config.json, special_tokens_map.json and added_tokens.json.

    ValueError if a file is damaged.
    """
    config = read_config(directory)
    if config.get("split_special_tokens"):
        raise ValueError(
            f"{directory / 'tokenizer_config.json'}: split_special_tokens would spell the template's own "
            "tokens out; set it to false"
        )
    if "added_tokens_decoder" not in config:
        older = directory / "special_tokens_map.json"
        config = {**config, **_checked(read_object(older), older)}
    kind = _class_of(directory, config)
    defaults, (adds_bos, adds_eos) = _DEFAULTS.get(kind, {}), _around(kind, config)
    named = {name: config.get(name, defaults.get(name)) for name in NAMES}
    texts = {name: text_of(token, name) for name, token in named.items() if token}
    return TokenizerSettings(
        named=texts,
        added=_added_tokens(directory, config, named, {*texts.values()}),
        add_prefix_space=_flag(config.get("add_prefix_space", False)),
        adds_bos=adds_bos,
        adds_eos=adds_eos,
        legacy=bool(config.get("legacy", True)),
        model_max_length=_length(config.get("model_max_length")),
        padding_side=config.get("padding_side") or "right",
    )


def read_object(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file of a model directory; {} if there is no file.

    ValueError as in `file_inside`.
    """
    found = file_inside(path.parent, path.name)
    return {} if found is None else read_json_object(found)


def read_config(directory: Path) -> dict[str, Any]:
    """Read tokenizer_config.json; {} if there is no file.

    If a field has the wrong type, ValueError names the field.
    """
    path = directory / "tokenizer_config.json"
    return _checked(read_object(path), path)


_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(NAMES, (str, dict)),
    "added_tokens_decoder": (dict,),
    "additional_special_tokens": (list,),
    "chat_template": (str, list),
    "padding_side": (str,),
    "tokenizer_class": (str,),
}


def _checked(config: dict[str, Any], path: Path) -> dict[str, Any]:
    for name, kinds in _TYPES.items():
        value = config.get(name)
        if value is not None and not isinstance(value, kinds):
            expected = " or ".join(_JSON_NAMES[kind] for kind in kinds)
            raise ValueError(f"{path}: {name}: expected {expected}, got {_JSON_NAMES[type(value)]}; {_AGAIN}")
    for key in config.get("added_tokens_decoder") or {}:
        if not _is_id(key):
            raise ValueError(f"{path}: added_tokens_decoder: expected a token id, got {key[:40]!r}; {_AGAIN}")
    return config


_AGAIN = "correct it, or copy the tokenizer's files again"
_JSON_NAMES: dict[type, str] = {
    str: "a text", dict: "an object", list: "a list", int: "a number", float: "a number",
    bool: "true or false",
}  # fmt: skip
_MOST_TOKENS = 1 << 31


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < _MOST_TOKENS


def text_of(token: object, name: str = "a special token") -> str:
    """Return the text of a special token, which is given as a text or as an object with "content".

    name: the token's name for messages. ValueError if `token` is anything else.
    """
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        got = f"{token!r:.80}"
        raise ValueError(
            f'tokenizer_config.json: {name}: expected a text or an object with "content", got {got}'
        )
    return text


def tokenizer_class(directory: Path) -> str:
    """Return the tokenizer class that the files name, without the suffix "Fast"; "" if they name none."""
    return _class_of(directory, read_config(directory))


def _class_of(directory: Path, config: dict[str, Any]) -> str:
    name = config.get("tokenizer_class")
    if name is None:
        model_type = str(read_object(directory / "config.json").get("model_type", ""))
        name = next((kind for types, kind in _CLASSES.items() if re.fullmatch(types, model_type)), "")
    return str(name).removesuffix("Fast")


def _around(kind: str, config: dict[str, Any]) -> tuple[bool | None, bool | None]:
    if kind not in _AROUND:
        return None, None
    adds_bos, adds_eos = _AROUND[kind]
    return bool(config.get("add_bos_token", adds_bos)), bool(config.get("add_eos_token", adds_eos))


def _added_tokens(
    directory: Path, config: dict[str, Any], named: dict[str, Any], texts: set[str]
) -> list[_C.GivenToken]:
    """Return the added tokens, in the order in which transformers assigns ids to them.

    The rules are those of `_from_pretrained` in transformers' tokenization_utils_base.py.
    """
    extra = config.get("additional_special_tokens") or []
    decoder = config.get("added_tokens_decoder")
    if decoder is None:
        special = texts | {text_of(token) for token in extra}
        older = _token_ids(directory / "added_tokens.json")
        given = [
            _given(text, special=text in special) for text in sorted(older, key=lambda text: older[text])
        ]
        settled: set[str] = set()
    else:
        given = [_given(decoder[key], True) for key in sorted(decoder, key=int)]
        settled = {text_of(token) for token in decoder.values()}
    # The flags (lstrip, ...) of a named token are ignored if tokenizer.json or added_tokens_decoder has the
    # token. The flags of an additional special token are used unless a named token has the same text.
    for token in filter(None, named.values()):
        counts = isinstance(token, dict) and text_of(token) not in settled
        given.append(_given(token, counts and decoder is not None, counts))
        settled.add(text_of(token))
    for token in filter(None, extra):
        given.append(_given(token, isinstance(token, dict) and text_of(token) not in texts))
    return given


def _token_ids(path: Path) -> dict[str, int]:
    ids = read_object(path)
    for text, number in ids.items():
        if type(number) is not int or not 0 <= number < _MOST_TOKENS:
            raise ValueError(f"{path}: {text!a}: expected a token id, got {number!r:.40}; {_AGAIN}")
    return ids


def _given(
    token: object, replaces_file: bool = False, replaces_other: bool | None = None, **flags: bool
) -> _C.GivenToken:
    from fastsft import _C

    special = flags.get("special", True)
    fields = token if isinstance(token, dict) else {"normalized": not special, "special": special}
    values = [bool(fields.get(flag, flag == "special")) for flag in _FLAGS]
    other = replaces_file if replaces_other is None else replaces_other
    return _C.GivenToken(_C.AddedToken(-1, text_of(token), *values), replaces_file, other)


def _flag(value: object) -> bool | None:
    return None if value is None else bool(value)


def _length(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 < value < 1e9 else None
