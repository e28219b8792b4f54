"""Checks config.json and generation_config.json when they are read, and completes them when they are saved.

Rules: docs/spec/trainer_semantics.md, sections 21 and 22.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastsft.model.config_words import in_both_words
from fastsft.runtime.regular_files import file_inside, read_json_object

# transformers' default generation settings. If config.json has another value, the value moves to
# generation_config.json.
_GENERATION_DEFAULTS: dict[str, Any] = {
    "max_length": 20,
    "min_length": 0,
    "do_sample": False,
    "early_stopping": False,
    "num_beams": 1,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "num_return_sequences": 1,
}
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p")


def json_text(value: object) -> str:
    """Return JSON text in transformers' format: indent 2, sorted keys, newline at the end."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=True) + "\n"


def config_to_save(
    config: Mapping[str, Any], tokenizer: object, save_dtype: str, class_name: str | None = None
) -> dict[str, Any]:
    """Return a saved model's config.json: `config` with the saved dtype, class name and token ids.

    The result has both transformers 4 and 5 keys. class_name: a generic engine model's transformers
    class.
    """
    from fastsft import _C

    saved = {key: value for key, value in config.items() if key != "_name_or_path"}
    for name in _misplaced(saved):
        del saved[name]
    saved["torch_dtype"] = save_dtype
    if "dtype" in saved:
        saved["dtype"] = save_dtype
    prefix = _C.model_families().get(str(saved.get("model_type")))
    if class_name is not None:
        saved["architectures"] = [class_name]
    elif not saved.get("architectures") and prefix:
        saved["architectures"] = [f"{prefix}ForCausalLM"]
    # In vision-text models, generation reads token ids from text_config or from the outer configuration.
    text = saved.get("text_config")
    if isinstance(text, Mapping):
        saved["text_config"] = text = dict(text)
    for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
        _align(saved, name, tokenizer)
        if isinstance(text, dict) and name in text:
            _align(text, name, tokenizer)
    return in_both_words(saved)


def generation_config_to_save(
    source: Mapping[str, Any] | None, config: Mapping[str, Any], tokenizer: object
) -> dict[str, Any]:
    """Return generation_config.json with the tokenizer's token ids.

    source: the source model's file; if None, the result is made from `config`. A single end-of-sequence
    id becomes a list, as in transformers 4.56 and later. Settings that transformers would refuse to save are
    copied with a warning.
    """
    saved = dict(source) if source is not None else _from_config(config)
    moved = _misplaced(config)
    if moved:
        warnings.warn(
            f"config.json: generation settings {sorted(moved)} move to generation_config.json", stacklevel=2
        )
        saved.update(moved)
    eos = saved.get("eos_token_id")
    if isinstance(eos, int):
        saved["eos_token_id"] = eos = [eos]
    own = getattr(tokenizer, "eos_token_id", None)
    if own is not None and (own not in _ids(config.get("eos_token_id")) or own not in _ids(eos)):
        saved["eos_token_id"] = [own, *(token for token in _ids(eos) if token not in (own, None))]
    for stop in getattr(tokenizer, "stop_token_ids", ()):
        # The model was trained to end replies with these tokens (docs/spec/fastchat_labels.md, section 4.4
        # (f)).
        ids = saved.get("eos_token_id") or []
        if stop not in ids:
            saved["eos_token_id"] = [*ids, stop]
    for name in ("bos_token_id", "pad_token_id"):
        _align(saved, name, tokenizer)
    _warn_of_contradictions(saved)
    return {name: value for name, value in saved.items() if value is not None}


def read_generation_config(directory: str | Path) -> dict[str, Any] | None:
    """Read a model directory's generation_config.json; None if there is none.

    A broken file only causes a warning and counts as missing, so that no finished run is lost over it.
    ValueError for a link that leaves the directory (`file_inside`).
    """
    path = file_inside(directory, "generation_config.json")
    if path is None:
        return None
    try:
        content = read_json_object(path)
        _check_types(content, _GENERATION_TYPES, "")
        return content
    except ValueError as error:
        problem = str(error).removeprefix(f"{path}: ").removeprefix("expected a JSON object").strip(" :,")
    warnings.warn(
        f"{path}: expected a JSON object ({problem}); not copied, the saved one is made from config.json",
        stacklevel=2,
    )
    return None


def check_config_types(config: Mapping[str, Any], path: Path) -> None:
    """Raise ValueError, naming the field, if a value in config.json has the wrong type.

    Only the fields that Python code reads are checked here; the engine checks the fields that it reads.
    """
    _check_types(config, _CONFIG_TYPES, f"{path}: ")


def _is_id(value: object) -> bool:
    return type(value) is int and -1 <= value < 1 << 31


def _is_ids(value: object) -> bool:
    return _is_id(value) or (isinstance(value, list) and all(map(_is_id, value)))


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


_ID = ("a token id", _is_id)
_IDS = ("a token id or a list of them", _is_ids)
_OBJECT = ("an object", lambda value: isinstance(value, dict))
_TEXT = ("a text", lambda value: isinstance(value, str))
Types = dict[str, tuple[str, Callable[[object], bool]]]
_GENERATION_TYPES: Types = {"eos_token_id": _IDS, "bos_token_id": _ID, "pad_token_id": _ID}
_CONFIG_TYPES: Types = {
    "model_type": _TEXT,
    "max_position_embeddings": ("a number of positions", _is_size),
    "vocab_size": ("a number of tokens", _is_size),
    "rope_scaling": _OBJECT,
    "rope_parameters": _OBJECT,
    "eos_token_id": _IDS,
    "bos_token_id": _IDS,
    "pad_token_id": _ID,
    "architectures": ("a list", lambda value: isinstance(value, list)),
}


def _check_types(values: Mapping[str, Any], types: Types, where: str) -> None:
    for name, (expected, fits) in types.items():
        value = values.get(name)
        if value is not None and not fits(value):
            raise ValueError(
                f"{where}{name}: expected {expected}, got {ascii(value)[:60]}; correct it, or copy or "
                "download it again"
            )


def _from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "transformers_version")
    return {"_from_model_config": True, **{name: config[name] for name in names if name in config}}


def _align(saved: dict[str, Any], name: str, tokenizer: object) -> None:
    """Set the token id `name` to the tokenizer's id, unless the tokenizer has none or `saved` contains it
    already.

    In a list of eos_token_id, the new id comes first and the other ids stay. Source: `_align_special_token`
    of transformers 5.24.
    """
    own, ids = getattr(tokenizer, name, None), saved.get(name)
    if own is None or own in _ids(ids):
        return
    saved[name] = [own, *ids] if isinstance(ids, list) and name == "eos_token_id" else own


def _ids(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _misplaced(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: config[name]
        for name, default in _GENERATION_DEFAULTS.items()
        if config.get(name) is not None and config[name] != default
    }


def _warn_of_contradictions(saved: Mapping[str, Any]) -> None:
    unused = [
        name
        for name in _SAMPLING
        if saved.get(name, _GENERATION_DEFAULTS.get(name)) not in (None, _GENERATION_DEFAULTS.get(name))
    ]
    if unused and not saved.get("do_sample", False):
        warnings.warn(
            f"generation_config.json: {unused} have no effect while do_sample is false; copied, but "
            "transformers refuses to save such a file: set do_sample to true in it, or remove them",
            stacklevel=3,
        )
