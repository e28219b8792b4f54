"""Code in a model's directory, which --trust_remote_code True makes transformers run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastsft.runtime.regular_files import file_inside, read_json_object

MODEL, CONFIG = "AutoModelForCausalLM", "AutoConfig"
_TOKENIZER = "AutoTokenizer"


def has_model_code(config: Mapping[str, Any]) -> bool:
    """True if config.json names a model class of the directory's own code."""
    return MODEL in _classes(config)


def check_model_code(config: Mapping[str, Any], directory: Path, engine: str) -> None:
    """ValueError for --engine native, and for code that is not in files of the directory."""
    path, classes = directory / "config.json", _classes(config)
    if engine == "native":
        raise ValueError(
            f"--trust_remote_code True: {path}: auto_map has {MODEL} {classes[MODEL]!r}, code that the "
            "native engine does not run: leave out --engine native, or leave the flag out, to train with the "
            "family's own class"
        )
    for name in (CONFIG, MODEL):
        file = code_file(classes.get(name, ""))
        if name in classes and (file is None or file_inside(directory, file) is None):
            raise ValueError(
                f"--trust_remote_code True: {path}: auto_map has {name} {classes[name]!r}; expected a module "
                "of this directory and its class, as modeling_x.XForCausalLM: copy the files of code into it"
            )


def code_file(reference: object) -> str | None:
    """`modeling_x.py` of "modeling_x.XForCausalLM"; None for what is no module of the directory."""
    parts = reference.split(".") if isinstance(reference, str) else []
    return f"{parts[0]}.py" if len(parts) == 2 and all(map(str.isidentifier, parts)) else None


def refuse_remote_code(directory: Path, config: Mapping[str, Any], *, runs_model: bool) -> None:
    """ValueError for a class in `auto_map` that transformers would take in the place of its own, and that
    is not run here.

    config: the content of config.json. runs_model: the model's own classes are. For runs that trust code;
    others train the family's own class, as transformers does.
    """
    if not runs_model:
        _refuse(directory / "config.json", _classes(config), (CONFIG, MODEL))
    path = directory / "tokenizer_config.json"
    if path.is_file():
        _refuse(path, _classes(read_json_object(path)), (_TOKENIZER,))


def _refuse(path: Path, classes: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if name in classes:
            raise ValueError(
                f"--trust_remote_code True: {path}: auto_map has {name} {classes[name]!r}, code that "
                "transformers would run, and fastsft does not: leave the flag out, or take the entry out of "
                "the file, to use the library's own class; else train with transformers' Trainer"
            )


def _classes(content: Mapping[str, Any]) -> dict[str, Any]:
    """The classes that auto_map names; old tokenizers have theirs alone."""
    found = content.get("auto_map")
    if isinstance(found, list | tuple):
        return {_TOKENIZER: found}
    return {name: each for name, each in found.items() if each} if isinstance(found, Mapping) else {}
