"""Tokenizers that fastsft does not reproduce natively, run by the `tokenizers` library."""

from __future__ import annotations

import json
import re
from typing import Any

from fastsft import _C
from fastsft.tokenizers.settings import TokenizerSettings

_MAX_PATTERN = 10_000
# A group that repeats, with something inside that repeats: time can double with every character.
_NESTED_REPEAT = re.compile(
    r"\((?:[^()\\]|\\.)*[*+](?:[^()\\]|\\.)*\)[*+]|\((?:[^()\\]|\\.)*[*+](?:[^()\\]|\\.)*\)\{\d+,\d*\}"
)


def library_tokenizer(text: str, settings: TokenizerSettings) -> Any:
    """The tokenizer.json `text` behind the interface of the native tokenizers.

    Byte ranges are the library's, widened so that they cover the text. ValueError for a file that the library
    refuses, for a pattern that may take exponential time, and for more around a text than BOS and EOS.
    """
    import tokenizers  # type: ignore[import-untyped]

    content = json.loads(text)
    check_patterns(content)
    _check_dropout(content)
    text = _with_prefix_space(content, settings)
    finds, plain = _load(tokenizers, text, settings), _load(tokenizers, text, settings)
    plain.encode_special_tokens = True
    calls = _C.LibraryCalls()
    calls.encode = lambda data, as_plain: _encode(plain if as_plain else finds, data)
    calls.decode = lambda ids, skip: finds.decode(ids, skip_special_tokens=skip)
    calls.token_text = lambda token_id: finds.id_to_token(token_id) or ""
    calls.find_token = lambda token: _or_minus(finds.token_to_id(token))
    calls.special_ids = set(finds.get_added_tokens_decoder())
    calls.vocab_size = max(finds.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    calls.legacy = settings.legacy
    ids = {name: _or_minus(finds.token_to_id(token)) for name, token in settings.named.items()}
    named = _C.NamedIds(*(ids.get(f"{name}_token", -1) for name in ("bos", "eos", "unk", "pad")))
    if settings.adds_bos is None:
        calls.adds_bos, calls.adds_eos = _around(finds.encode("a"), named)
    else:
        calls.adds_bos, calls.adds_eos = settings.adds_bos, bool(settings.adds_eos)
    calls.named = named
    return _C.LibraryTokenizer(calls)


def check_patterns(section: Any) -> None:
    """Refuses regular expressions that a hostile file could stop a run with."""
    values = section.values() if isinstance(section, dict) else section if isinstance(section, list) else ()
    for value in values:
        if isinstance(value, (dict, list)):
            check_patterns(value)
    pattern = section.get("Regex") if isinstance(section, dict) else None
    if not isinstance(pattern, str):
        return
    if len(pattern) > _MAX_PATTERN:
        raise ValueError(f"tokenizer.json: a pattern of {len(pattern)} characters, at most {_MAX_PATTERN}")
    if _NESTED_REPEAT.search(pattern):
        raise ValueError(
            f"tokenizer.json: the pattern {pattern[:200]!r} repeats a repeated group; it may never end"
        )


def _check_dropout(content: Any) -> None:
    model = content.get("model") if isinstance(content, dict) else None
    dropout = model.get("dropout") if isinstance(model, dict) else None
    if dropout:
        raise ValueError(
            f"tokenizer.json: model.dropout is {dropout}: a text would have other ids each time and on each "
            "rank; set it to null"
        )


def _with_prefix_space(content: Any, settings: TokenizerSettings) -> str:
    """The file's text, its ByteLevel pre-tokenizer set as transformers sets it by tokenizer_config.json."""
    section = content.get("pre_tokenizer") if isinstance(content, dict) else None
    if isinstance(section, dict) and section.get("type") == "ByteLevel":
        given = settings.add_prefix_space
        section["add_prefix_space"] = section.get("add_prefix_space", True) if given is None else given
    return json.dumps(content)


def _load(tokenizers: Any, text: str, settings: TokenizerSettings) -> Any:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"tokenizer.json: the tokenizers library refuses it: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    in_file = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    known, added = set(in_file), []
    for given in settings.added:
        text = given.token.text
        if text not in known or (given.replaces_file if text in in_file else given.replaces_other):
            added.append(_library_token(tokenizers, given.token))
            known.add(text)
    tokenizer.add_tokens(added)
    return tokenizer


def _library_token(tokenizers: Any, token: Any) -> Any:
    return tokenizers.AddedToken(
        token.text,
        lstrip=token.strips_left,
        rstrip=token.strips_right,
        single_word=token.single_word,
        normalized=token.normalized,
        special=token.special,
    )


def _encode(tokenizer: Any, data: str) -> list[tuple[int, int, int]]:
    encoding = tokenizer.encode(data, add_special_tokens=False)
    bytes_before = [0]
    for char in data:
        bytes_before.append(bytes_before[-1] + len(char.encode()))
    return [
        (token_id, bytes_before[begin], bytes_before[end])
        for token_id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True)
    ]


def _around(encoding: Any, named: Any) -> tuple[bool, bool]:
    """Whether BOS stands in front of a text and EOS behind it, by the `encoding` of a text."""
    places = [number for number, part in enumerate(encoding.sequence_ids) if part is not None]
    first, last = (places[0], places[-1]) if places else (len(encoding.ids), len(encoding.ids))
    before, after = encoding.ids[:first], encoding.ids[last + 1 :]
    if len(before) == 1 and named.bos < 0:
        named.bos = before[0]
    if len(after) == 1 and named.eos < 0:
        named.eos = after[0]
    if before in ([], [named.bos]) and after in ([], [named.eos]):
        return bool(before), bool(after)
    raise ValueError(
        f"tokenizer.json: it puts the ids {before} in front of a text and {after} behind it, more than "
        "bos_token and eos_token"
    )


def _or_minus(token_id: int | None) -> int:
    return -1 if token_id is None else token_id
