"""Checks for names that a script replaced before it calls `train()`, and for code in model directories."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft import _C
from fastsft.model.alterations.equal_replacements import equal_replacement
from fastsft.model.family import refuse_remote_code
from fastsft.model.weights import check_weight_names
from fastsft.originals.classes import (
    Method,
    changed_constants,
    is_class_of,
    replaced_functions,
    replaced_methods,
)
from fastsft.originals.functions import described
from fastsft.runtime.regular_files import read_json_object
from fastsft.script_names.module_names import rebound_data_names, refuse_unused
from fastsft.script_names.patched_libraries import refuse_patches

if TYPE_CHECKING:
    from fastsft.model.causal_lm import CausalLM


def check_names(trainer_class: type) -> None:
    """Raise ValueError for replaced names that `train()` does not use, and for transformers' Trainer.

    trainer_class: the class to which `fastsft.train.Trainer` is bound. A script may have rebound this name.
    """
    refuse_unused()
    refuse_patches(uses_tokenizer=bool(rebound_data_names()))
    bases = getattr(trainer_class, "__mro__", ())
    if any(base.__module__ == "transformers.trainer" for base in bases):
        raise ValueError(
            f"fastsft.train.Trainer was set by the script to {trainer_class.__qualname__}, which "
            "derives from transformers.Trainer and cannot train fastsft's model; derive it from fastsft's"
        )


def check_directory(model: CausalLM, *, trusts_code: bool) -> None:
    """Check the directory of `model`.

    ValueError if FastChat's train() would run code of this directory that fastsft does not run, and for
    weight names that do not fit the configuration. trusts_code: value of --trust_remote_code.
    """
    check_weight_names(model.config, model.source_directory)
    if trusts_code:
        refuse_remote_code(model.source_directory, model.config, runs_model=model.runs_code)
    family = str(model.config.get("model_type"))
    uses_tokenizer = bool(rebound_data_names())
    prefix = _C.model_families().get(family, "")
    refuse_patched_classes(model.source_directory, family, prefix, uses_tokenizer=uses_tokenizer)


_MODELS = "transformers.models"
_BASES = {
    "config": (("transformers.configuration_utils", "PretrainedConfig"),
               ("transformers.configuration_utils", "PreTrainedConfig")),
    "model": (("transformers.modeling_utils", "PreTrainedModel"),),
    "tokenizer": (("transformers.tokenization_utils", "PreTrainedTokenizer"),),
}  # fmt: skip
_PARTS = (("transformers.tokenization_utils", "Trie"),)
_LOADING = ("configuration_", "tokenization_", "modeling_utils")  # module prefixes with loading functions
# Methods of torch.nn.Module that build a model, load or move weights, or visit submodules.
_OF_MODULES = (
    "to", "_apply", "apply", "train", "parameters", "named_parameters", "modules", "named_modules",
    "children", "requires_grad_", "zero_grad", "load_state_dict", "_load_from_state_dict", "state_dict",
    "__setattr__", "register_parameter", "register_buffer", "add_module",
)  # fmt: skip
# Tables of transformers' Auto classes, in which a script may have registered its own classes for a family.
_TABLES = {
    "AutoConfig": ("transformers.models.auto.configuration_auto", "CONFIG_MAPPING"),
    "AutoModelForCausalLM": ("transformers.models.auto.modeling_auto", "MODEL_FOR_CAUSAL_LM_MAPPING"),
    "AutoTokenizer": ("transformers.models.auto.tokenization_auto", "TOKENIZER_MAPPING"),
}


def refuse_patched_classes(directory: Path, model_type: str, prefix: str, *, uses_tokenizer: bool) -> None:
    """Raise ValueError if a script has changed a transformers class that the files of `directory` name.

    prefix: prefix of the family's class names. uses_tokenizer: True if the run uses transformers' tokenizer
    itself, so that changes of tokenizer classes take effect. Classes that are not imported cannot have been
    changed.
    """
    for name, table in _TABLES.items():
        registered = None if uses_tokenizer and name == "AutoTokenizer" else _registered(*table, model_type)
        if registered is not None:
            _refuse(f"{name}'s class for {model_type}", registered)
    kinds = [*_of_family(model_type, prefix)]
    if not uses_tokenizer:
        kinds += _of_tokenizer(directory)
    for kind in dict.fromkeys(kinds):
        for method in replaced_methods(kind):
            if _counts(method):
                _refuse(method.where, method.value)
        for constant in changed_constants(kind, "transformers"):
            _refuse_value(constant.where, constant.value)
    homes = {owner.__module__ for kind in kinds for owner in kind.__mro__ if owner.__module__ in sys.modules}
    for home in sorted(homes):
        if home.startswith("transformers.") and home.rpartition(".")[2].startswith(_LOADING):
            for method in replaced_functions(home):
                _refuse(method.where, method.value)


def _counts(method: Method) -> bool:
    """True if loading or training would call the replaced method. Forward passes are checked elsewhere."""
    home, _, name = method.where.rpartition(".")
    counts = (
        name in _OF_MODULES if home.startswith("torch.") else not home.startswith("transformers.generation.")
    )
    return counts and equal_replacement(method.value) is None


def _refuse(where: str, value: object) -> None:
    raise ValueError(
        f"{where} was replaced by {described(value)}, which FastChat's train() would use and fastsft's does "
        "not: take the change back, or load model and data yourself and call fastsft.Trainer"
    )


def _refuse_value(where: str, value: object) -> None:
    raise ValueError(
        f"{where} was set to {value!r}, which FastChat's train() would use and fastsft's does not: set it "
        "back, or load model and data yourself and call fastsft.Trainer"
    )


def _of_family(model_type: str, prefix: str) -> Iterator[type]:
    family = model_type.removesuffix("_text")  # gemma3_text is the text model of gemma3
    home, text = f"{_MODELS}.{family}", "" if family == model_type else "Text"
    for kind, module, name in (
        ("config", f"{home}.configuration_{family}", f"{prefix}{text}Config"),
        ("model", f"{home}.modeling_{family}", f"{prefix}ForCausalLM"),
    ):
        yield from _imported([(module, name), (home, name)]) or _imported(_BASES[kind])


def _of_tokenizer(directory: Path) -> list[type]:
    name = _tokenizer_class(directory)
    names = {name.removesuffix("Fast"), *([name] if name == "PreTrainedTokenizerFast" else [])}
    modules = [each for each in list(sys.modules) if each.startswith((_MODELS, "transformers.tokenization"))]
    places = [(module, name) for module in modules for name in names]
    return (_imported(places) or _imported(_BASES["tokenizer"])) + _imported(_PARTS)


def _tokenizer_class(directory: Path) -> str:
    path = directory / "tokenizer_config.json"
    try:
        content = read_json_object(path) if path.is_file() else {}
    except ValueError:  # reported when the tokenizer is read
        content = {}
    named = content.get("tokenizer_class")
    default = "LlamaTokenizer" if (directory / "tokenizer.model").exists() else "Qwen2Tokenizer"
    return named if isinstance(named, str) else default


def _imported(places: Iterable[tuple[str, str]]) -> list[type]:
    """Return the imported classes among `places`. ValueError if a name is bound to another object."""
    found = []
    for module, name in places:
        value = vars(sys.modules.get(module, object)).get(name)
        if isinstance(value, type) and is_class_of(value, "transformers"):
            found.append(value)
        elif value is not None:
            _refuse(f"{module}.{name}", value)
    return found


def _registered(module: str, name: str, model_type: str) -> object:
    """Return the class that a script has registered for `model_type` in a table, or None."""
    table = vars(sys.modules.get(module, object)).get(name)
    for key, value in dict(getattr(table, "_extra_content", None) or {}).items():
        if model_type in (key, getattr(key, "model_type", None)):
            return next((each for each in value if each), None) if isinstance(value, tuple) else value
    return None
