"""config.json and generation_config.json as saved (docs/spec/trainer_semantics.md, sections 21 and 22)."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastsft.model.config_words import in_both_words
from fastsft.runtime.messages import warn_once
from fastsft.runtime.regular_files import file_inside, read_json_object

# transformers' defaults of what belongs into generation_config.json; other values move there.
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
_SAFETENSORS_TO_TORCH = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def json_text(value: object) -> str:
    """As transformers writes its JSON files: indent 2, sorted keys, newline."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=True) + "\n"


def source_dtype(directory: str | Path, config: Mapping[str, Any]) -> str:
    """float32, bfloat16 or float16: the type of the weights in `directory`.

    Of the first weight in its safetensors files; of `config` when the weights are pickled; float32 when
    neither says.
    """
    from fastsft import _C

    if has_safetensors(directory):
        first = _C.SafetensorsReader(_C.weight_files(str(directory))[0]).tensors[0]
        return _SAFETENSORS_TO_TORCH.get(first.dtype, "float32")
    named = str(config.get("torch_dtype") or config.get("dtype") or "float32").removeprefix("torch.")
    return named if named in _SAFETENSORS_TO_TORCH.values() else "float32"


def has_safetensors(directory: str | Path) -> bool:
    """True if a model directory holds safetensors weights, single or with an index."""
    folder = Path(directory)
    return any(
        os.path.lexists(folder / name) for name in ("model.safetensors", "model.safetensors.index.json")
    )


def tell_of_two_forms(directory: str | Path) -> None:
    """A line where a directory has its weights in one file and in others with an index: they may differ."""
    folder = Path(directory)
    for single in ("model.safetensors", "pytorch_model.bin"):
        index = f"{single}.index.json"
        if all(os.path.lexists(folder / name) for name in (single, index)):
            warn_once(
                f"{folder}: {single} and {index} are both there: {single} is read, as transformers does, and "
                "the files that the index names are not; remove what is not of this model"
            )
            return
        if os.path.lexists(folder / single) or os.path.lexists(folder / index):
            return


def config_to_save(
    config: Mapping[str, Any], tokenizer: object, save_dtype: str, class_name: str | None = None
) -> dict[str, Any]:
    """config.json of the saved model: the model's configuration with type, class and token ids as saved.

    In the words of transformers 4 and 5 (model/words). class_name: of transformers' model, if there is one.
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
    text = saved.get("text_config")  # of a vision-text model, whose ids generation may take from either
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
    """generation_config.json: `source` copied, or made from `config` when None, with the tokenizer's ids.

    A single end-of-sequence id becomes a list, as in transformers 4.56 and later. What transformers would
    refuse to save is copied with a warning.
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
    wanted = getattr(tokenizer, "eos_token_id", None)
    if wanted is not None and (wanted not in _ids(config.get("eos_token_id")) or wanted not in _ids(eos)):
        saved["eos_token_id"] = [wanted, *(token for token in _ids(eos) if token not in (wanted, None))]
    for stop in getattr(tokenizer, "stop_token_ids", ()):
        # What replies were trained to end with (docs/spec/fastchat_labels.md, section 4.4 (f)).
        known = saved.get("eos_token_id") or []
        if stop not in known:
            saved["eos_token_id"] = [*known, stop]
    for name in ("bos_token_id", "pad_token_id"):
        _align(saved, name, tokenizer)
    _warn_of_contradictions(saved)
    return {name: value for name, value in saved.items() if value is not None}


def read_generation_config(directory: str | Path) -> dict[str, Any] | None:
    """generation_config.json of a model directory; None when it has none.

    None with a warning when it is no JSON object, or its token ids are none: a finished run is not lost over
    it. ValueError for a link that leaves the directory (`file_inside`).
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
    """ValueError naming the field where a value of config.json is of another type.

    Only of those that Python looks at; the engine checks what it reads itself.
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
            raise ValueError(f"{where}{name}: expected {expected}, got {ascii(value)[:60]}")


def _from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "transformers_version")
    return {"_from_model_config": True, **{name: config[name] for name in names if name in config}}


def _align(saved: dict[str, Any], name: str, tokenizer: object) -> None:
    """Put the tokenizer's id first. A token that the tokenizer lacks changes nothing; ids of a list stay.

    Source: `_align_special_token` of transformers 5.24.
    """
    wanted, known = getattr(tokenizer, name, None), saved.get(name)
    if wanted is None or wanted in _ids(known):
        return
    saved[name] = [wanted, *known] if isinstance(known, list) and name == "eos_token_id" else wanted


def _ids(value: object) -> list[object]:
    """Ids as a list: none, one, or several."""
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
