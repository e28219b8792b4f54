"""Tokenizers that fastsft does not reproduce natively, run by the `tokenizers` library."""

from __future__ import annotations

import json
import math
import re

from fastsft import _C
from fastsft.tokenizer.library_process import LibraryProcess
from fastsft.tokenizer.settings import TokenizerSettings

_MAX_PATTERN = 10_000
_MAX_GROWTH = 256  # what the replacements of a file may make of a character
_REPEAT = re.compile(r"[*+]|\{\d*,\d*\}")


def library_tokenizer(
    text: str, settings: TokenizerSettings, where: str = "tokenizer.json"
) -> _C.LibraryTokenizer:
    """The tokenizer.json `text` with the interface of the native tokenizers.

    The library runs in a process with limits of time and memory. Byte ranges are the library's, widened so
    that they cover the text. ValueError naming `where` for a file that the library refuses, for a pattern
    that may take exponential time, and for more around a text than BOS and EOS; later for a text that the
    library cannot encode within the limits.
    """
    content = json.loads(text)
    check_patterns(content)
    check_growth(content)
    _check_dropout(content)
    added = [_given(token) for token in settings.added]
    process = LibraryProcess({"text": _with_prefix_space(content, settings), "added": added}, where)
    vocabulary: dict[str, int] = process.hello["vocabulary"]
    texts = {token_id: token for token, token_id in vocabulary.items()}
    calls = _C.LibraryCalls()
    calls.encode = process.encode
    calls.decode = process.decode
    calls.token_text = lambda token_id: texts.get(token_id, "")
    calls.find_token = lambda token: vocabulary.get(token, -1)
    calls.special_ids = set(process.hello["special_ids"])
    calls.control_ids = set(process.hello["control_ids"])
    calls.vocab_size = max(vocabulary.values(), default=-1) + 1
    calls.legacy = settings.legacy
    ids = {name: vocabulary.get(token, -1) for name, token in settings.named.items()}
    named = _C.NamedIds(*(ids.get(f"{name}_token", -1) for name in ("bos", "eos", "unk", "pad")))
    if settings.adds_bos is None:
        before, after = process.hello["around"]
        calls.adds_bos, calls.adds_eos = _around(before, after, named)
    else:
        calls.adds_bos, calls.adds_eos = settings.adds_bos, bool(settings.adds_eos)
    calls.named = named
    return _C.LibraryTokenizer(calls)


def check_patterns(section: object) -> None:
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
    if _repeats_a_repeat(pattern):
        raise ValueError(
            f"tokenizer.json: the pattern {pattern[:200]!r} repeats a repeated group; it may never end"
        )


def check_growth(content: object) -> None:
    """Refuses replacements that, one after the other, multiply a text: thirty doublings fill any memory."""
    for name in ("normalizer", "decoder"):
        growth = _growth(content.get(name) if isinstance(content, dict) else None)
        if growth > _MAX_GROWTH:
            raise ValueError(
                f"tokenizer.json: {name}: its replacements make {growth:.3g} characters of one, at most "
                f"{_MAX_GROWTH} are allowed"
            )


def _growth(section: object) -> float:
    if isinstance(section, list):
        return math.prod(map(_growth, section))
    if not isinstance(section, dict):
        return 1.0
    inside = math.prod(_growth(section.get(name)) for name in ("normalizers", "decoders"))
    pattern, text = section.get("pattern"), section.get("content")
    if section.get("type") != "Replace" or not isinstance(pattern, dict) or not isinstance(text, str):
        return inside
    replaced = pattern.get("String")
    # A pattern may match nothing, too: between two characters.
    once = len(text) / len(replaced) if isinstance(replaced, str) and replaced else len(text) + 1.0
    return inside * max(1.0, once)


def _repeats_a_repeat(pattern: str) -> bool:
    """A group that repeats, with something inside that repeats: time can double with every character."""
    open_groups = [False]  # of each, whether something in it repeats
    at = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 2
            continue
        if pattern[at] == "[":
            at = _end_of_class(pattern, at)
            continue
        if pattern[at] == "(":
            open_groups.append(False)
            at += 2 if pattern.startswith("(?", at) else 1
            continue
        repeat = _REPEAT.match(pattern, at + 1 if pattern[at] == ")" else at)
        if pattern[at] == ")" and len(open_groups) > 1:
            inside = open_groups.pop()
            if inside and repeat:
                return True
            open_groups[-1] |= inside
        elif repeat:
            open_groups[-1] = True
        at += 1
    return False


def _end_of_class(pattern: str, at: int) -> int:
    """After the "]" of the class of characters that begins at `at`; classes may be inside it."""
    depth = 0
    while at < len(pattern):
        depth += (pattern[at] == "[") - (pattern[at] == "]")
        at += 2 if pattern[at] == "\\" else 1
        if depth == 0:
            break
    return at


def _check_dropout(content: object) -> None:
    model = content.get("model") if isinstance(content, dict) else None
    dropout = model.get("dropout") if isinstance(model, dict) else None
    if dropout:
        raise ValueError(
            f"tokenizer.json: model.dropout is {dropout}: a text would have other ids each time and on each "
            "rank; set it to null"
        )


def _with_prefix_space(content: object, settings: TokenizerSettings) -> str:
    """The file's text, its ByteLevel pre-tokenizer set as transformers sets it by tokenizer_config.json."""
    section = content.get("pre_tokenizer") if isinstance(content, dict) else None
    if isinstance(section, dict) and section.get("type") == "ByteLevel":
        given = settings.add_prefix_space
        section["add_prefix_space"] = section.get("add_prefix_space", True) if given is None else given
    return json.dumps(content)


def _given(given: _C.GivenToken) -> dict[str, object]:
    token = given.token
    return {
        "token": {
            "content": token.text,
            "lstrip": token.strips_left,
            "rstrip": token.strips_right,
            "single_word": token.single_word,
            "normalized": token.normalized,
            "special": token.special,
        },
        "replaces_file": given.replaces_file,
        "replaces_other": given.replaces_other,
    }


def _around(before: list[int], after: list[int], named: _C.NamedIds) -> tuple[bool, bool]:
    """True if BOS is put in front of a text, and True if EOS is put after it, by the ids there."""
    if len(before) == 1 and named.bos < 0:
        named.bos = before[0]
    if len(after) == 1 and named.eos < 0:
        named.eos = after[0]
    if before in ([], [named.bos]) and after in ([], [named.eos]):
        return bool(before), bool(after)
    raise ValueError(
        f"tokenizer.json: it puts the ids {before} in front of a text and {after} after it, more than "
        "bos_token and eos_token"
    )
