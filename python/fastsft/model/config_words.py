"""A configuration in the words of both releases of transformers: every config.json is written through it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastsft.model.rope_words import (
    DEFAULT_THETA,
    LAYER_KINDS,
    OLDER_KINDS,
    PARAMETERS,
    SCALED,
    SCALING,
    TWO_NAMES,
    WINDOWS,
    NoOlderWords,
    check_agree,
    check_scaled,
    has_rope,
    newer_words,
    older_words,
    with_original,
)
from fastsft.runtime.messages import warn_once
from fastsft.runtime.versions import library_major


def in_both_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with keys that transformers 4 or 5 reads in place of those that are there, also inside.

    What it says stays; a line says what transformers 4 has no words for. ValueError where words of the two
    contradict each other.
    """
    try:
        return _translated(config)
    except NoOlderWords as error:
        warn_once(
            f"config.json: {error}, which transformers 4 has no words for: only transformers 5 opens this "
            "model as it was trained"
        )
        return _translated(config, older=False)


def missing_words(config: Mapping[str, Any]) -> list[str]:
    """Keys of `in_both_words` that `config` lacks or has other values for; no line is printed."""
    try:
        made = _translated(config)
    except NoOlderWords:
        made = _translated(config, older=False)
    return sorted(name for name, value in made.items() if name not in config or config[name] != value)


def in_older_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` as transformers 4 reads it. ValueError where it has no words for something."""
    try:
        return _without_newer(_translated(config))
    except NoOlderWords as error:
        raise ValueError(
            f"config.json: {error}, which transformers 4 does not read; install transformers 5"
        ) from error


def as_computed_here(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a model of transformers, without words that its release has read past.

    transformers 4 keeps rope_parameters of a file as an attribute, and computes without them.
    """
    return dict(config) if library_major() > 4 else _without_newer(config)


def _without_newer(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_newer(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if name != PARAMETERS
    }


def _number(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError) as error:
        raise ValueError(f"config.json: {error}") from None


def plain_numbers(value: Any) -> Any:
    """Numbers that JSON lacks as Python has them; transformers 5 writes {"__float__": "Infinity"}."""
    if isinstance(value, list):
        return [plain_numbers(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {"__float__"}:
        return _number(value["__float__"])
    return {key: plain_numbers(each) for key, each in value.items()}


def _translated(config: Mapping[str, Any], *, older: bool = True) -> dict[str, Any]:
    """older: also the words of transformers 4 for rope_parameters. NoOlderWords where there are none."""
    made = {
        name: _translated(value, older=older) if _is_config(name, value) else plain_numbers(value)
        for name, value in config.items()
    }
    check_agree(made)
    if has_rope(made) or made.get("model_type") in DEFAULT_THETA:
        made = _with_rope(made, older=older)
    kind = str(made.get("model_type"))
    listed = LAYER_KINDS.get(kind, "")
    if isinstance(made.get(listed), list):
        made[listed] = [OLDER_KINDS.get(each, each) for each in made[listed]]
    for names in TWO_NAMES.get(kind, ()):
        values = [made[name] for name in names if name in made]
        made |= dict.fromkeys(names, values[0]) if values else {}
    return made | _windows(kind, made)


def _windows(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The window that the installed release computes with, in the words of both."""
    if kind not in WINDOWS:
        return {}
    both, usual, one = WINDOWS[kind]
    given = {both: config.get(both, usual), one: config.get(one, 0)}
    if any(type(value) is not int for value in given.values()):
        return {}  # transformers names what it does not take
    is_read = library_major() > 4 and one in config
    window = given[one] if is_read else given[both] // 2
    return {both: 2 * window, one: window}


def _is_config(name: str, value: object) -> bool:
    return isinstance(value, Mapping) and name.endswith("_config") and "model_type" in value


def _with_rope(config: dict[str, Any], *, older: bool) -> dict[str, Any]:
    is_newer = bool(config.get(PARAMETERS))
    made = with_original(config, 5 if is_newer else library_major())
    if not is_newer:
        made |= newer_words(made)
    if made.get("model_type") in SCALED and not made.get(PARAMETERS) and made.get(SCALING, 0) is None:
        del made[SCALING]  # transformers 5 computed with the family's own, which 4 takes without the key
    if not older:
        return made
    if made.get(PARAMETERS):
        made |= older_words(made)
    check_scaled(made)
    return made
