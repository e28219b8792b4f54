"""Translates a configuration between transformers 4 and 5 keys. A saved config.json has both.

In this file, "words" are the keys and values that a transformers release reads. rope_words.py has the words
for RoPE.
"""

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
    """Return `config`, and the configurations nested in it, with both transformers 4 and 5 keys.

    A notice names settings for which transformers 4 has no keys. ValueError if the older and the newer keys
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
    """Return the keys that `in_both_words` would add to `config` or change, without printing a notice."""
    try:
        made = _translated(config)
    except NoOlderWords:
        made = _translated(config, older=False)
    return sorted(name for name, value in made.items() if name not in config or config[name] != value)


def in_older_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with transformers 4 keys.

    ValueError if transformers 4 lacks keys for a setting.
    """
    try:
        return _without_newer(_translated(config))
    except NoOlderWords as error:
        raise ValueError(
            f"config.json: {error}, which transformers 4 does not read; install transformers 5"
        ) from error


def as_computed_here(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a transformers model's configuration without the keys that the installed release ignores.

    transformers 4 keeps a file's rope_parameters as an attribute, but does not compute with them.
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
    """Replace objects such as {"__float__": "Infinity"} by the number.

    transformers 5 writes such objects, because JSON has no infinity.
    """
    if isinstance(value, list):
        return [plain_numbers(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {"__float__"}:
        return _number(value["__float__"])
    return {key: plain_numbers(item) for key, item in value.items()}


def _translated(config: Mapping[str, Any], *, older: bool = True) -> dict[str, Any]:
    """Translate `config`.

    older: True to write rope_parameters with transformers 4 keys, too; NoOlderWords if this is
    impossible.
    """
    made = {
        name: _translated(value, older=older) if _is_config(name, value) else plain_numbers(value)
        for name, value in config.items()
    }
    check_agree(made)
    if has_rope(made) or made.get("model_type") in DEFAULT_THETA:
        made = _with_rope(made, older=older)
    kind = str(made.get("model_type"))
    key = LAYER_KINDS.get(kind, "")
    if isinstance(made.get(key), list):
        made[key] = [OLDER_KINDS.get(layer, layer) for layer in made[key]]
    for names in TWO_NAMES.get(kind, ()):
        values = [made[name] for name in names if name in made]
        made |= dict.fromkeys(names, values[0]) if values else {}
    return made | _windows(kind, made)


def _windows(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attention window that the installed release reads, under both releases' keys."""
    if kind not in WINDOWS:
        return {}
    two_sided, default, one_sided = WINDOWS[kind]
    given = {two_sided: config.get(two_sided, default), one_sided: config.get(one_sided, 0)}
    if any(type(value) is not int for value in given.values()):
        return {}  # transformers itself raises an error that names the key
    is_read = library_major() > 4 and one_sided in config
    window = given[one_sided] if is_read else given[two_sided] // 2
    return {two_sided: 2 * window, one_sided: window}


def _is_config(name: str, value: object) -> bool:
    return isinstance(value, Mapping) and name.endswith("_config") and "model_type" in value


def _with_rope(config: dict[str, Any], *, older: bool) -> dict[str, Any]:
    is_newer = bool(config.get(PARAMETERS))
    made = with_original(config, 5 if is_newer else library_major())
    if not is_newer:
        made |= newer_words(made)
    if made.get("model_type") in SCALED and not made.get(PARAMETERS) and made.get(SCALING, 0) is None:
        # Without the key, transformers 4 also uses the family's own scaling, as transformers 5 did.
        del made[SCALING]
    if not older:
        return made
    if made.get(PARAMETERS):
        made |= older_words(made)
    check_scaled(made)
    return made
