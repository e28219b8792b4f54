"""Checks that a given model computes the same as the engine.

For a model directory, the library code that would load it is checked. Code is compared rather than tried on
small layers, because a patch may act only for certain layers, sizes, tokens, times or ranks.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from fastsft.model.alterations.alteration import Alteration, refuse
from fastsft.model.alterations.hooks import global_hooks, hooks_of, observers
from fastsft.model.alterations.library_code import LibraryCode, follow_builders, follow_tables
from fastsft.model.alterations.module_settings import ModuleSettings, structure_settings
from fastsft.model.alterations.modules import (
    ComparedModules,
    fresh_model,
    other_attributes,
    other_configurations,
    replaced_on_modules,
)
from fastsft.model.alterations.parameters import other_classes, shared_parameters
from fastsft.model.native_support import activation_setting, find_dropouts
from fastsft.originals.classes import replaced_methods
from fastsft.originals.snapshots import WatchedNames
from fastsft.originals.source import imported_by, names_in
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DEFAULT_ATTENTION = "sdpa"
# transformers' modules that take part in a step, in addition to the model's own module
_COMPUTING = ("transformers.integrations.sdpa_attention", "transformers.loss.loss_utils")
# Class names of wrappers around a model, with the advice how to remove each.
_TAKE_OFF = {
    "DistributedDataParallel": "give model.module: fastsft averages gradients itself",
    "DataParallel": "give model.module, and start one process a device with torchrun",
    "FullyShardedDataParallel": "give the model that it wraps; --fsdp shards it",
    "DeepSpeedEngine": "give engine.module; --deepspeed takes the file",
}


def check_model(
    model: PreTrainedModel, config: dict[str, Any], caller: str, training: bool
) -> tuple[ModuleSettings, WatchedNames]:
    """Raise ValueError if modules compute something else than the engine. The error names every change.

    Return the settings that the modules compute with, and the library names that were checked. caller:
    message prefix. training: True if training follows, so that dropout matters.
    """
    code = LibraryCode(with_init=False)
    for kind in {type(module): None for module in model.modules()}:
        if kind.__module__.startswith(("transformers.", "torch.nn.")):
            code.follow_class(kind)
    follow_tables(code, str(model.config._attn_implementation or _DEFAULT_ATTENTION))
    library = [*code.found, *global_hooks()]
    built = {**config, **structure_settings(model, config)}
    modules = _compared(model, built, library, caller)
    if modules.found:  # modules of another structure have no settings that can be read
        refuse([*modules.found, *hooks_of(model)], caller)
    settings = ModuleSettings(model, config)
    if {**built, **settings.differing} != built:
        modules = _compared(model, {**built, **settings.differing}, library, caller)
    refuse(
        [*library, *replaced_on_modules(modules.pairs, code), *hooks_of(model), *shared_parameters(model),
         *other_classes(model), *settings.found, *other_configurations(modules.pairs),
         *other_attributes(modules.pairs, code, training=training)],
        caller,
    )  # fmt: skip
    _tell_equal(code.equal + modules.equal)
    for notice in [*settings.notices(), *observers()]:
        warn_once(notice)
    if model.model.rotary_emb.inv_freq.element_size() < 4:
        warn_once(
            "model.model.rotary_emb.inv_freq was rounded by model.to() or half(); fastsft rotates by the "
            "unrounded frequencies, as a model that is loaded in its type does"
        )
    return settings, code.watched


def check_patches(model_type: str, caller: str) -> WatchedNames:
    """Raise ValueError if torch or transformers was patched, so that it would compute something else.

    The check is for models that are opened from a directory; the error names the patched object. Nothing is
    imported: if a transformers file is not imported yet, only its names are read. Return the names that were
    checked.
    """
    from fastsft import _C

    code, prefix = LibraryCode(with_init=True), _C.model_families().get(model_type, "")
    home = family_module(model_type)
    if f"{prefix}ForCausalLM" in vars(sys.modules.get(home, object)):
        code.follow_name(home, f"{prefix}ForCausalLM")
    else:
        for module, name in imported_by(home):
            code.follow_name(module, name)
    for file in (home, *_COMPUTING):
        if file not in sys.modules:
            code.follow_torch(names_in(file))
    for name in ("Linear", "Embedding", "SiLU", "ModuleList"):
        code.follow_class(getattr(sys.modules["torch.nn"], name))
    follow_tables(code, _DEFAULT_ATTENTION)
    follow_builders(code, activation_setting(model_type)[1])
    refuse([_for_directory(found) for found in [*code.found, *global_hooks()]], caller)
    for notice in observers():
        warn_once(notice)
    _tell_equal(code.equal)
    return code.watched


def _compared(
    model: PreTrainedModel, config: dict[str, Any], library: list[Alteration], caller: str
) -> ComparedModules:
    """Compare the modules with a fresh model that is built from `config` without dropout.

    library: library patches. If no fresh model can be built, the error names these.
    """
    without_dropout = {**config, **dict.fromkeys(find_dropouts(config), 0.0)}
    try:
        fresh = fresh_model(model, without_dropout)
    except ValueError:
        refuse(library, caller)
        raise
    return ComparedModules(model, fresh)


def _for_directory(found: Alteration) -> Alteration:
    return Alteration(
        found.where, f"{found.found}, which has no effect on fastsft", found.native, found.way_out
    )


def _tell_equal(equal: list[str]) -> None:
    for known in dict.fromkeys(equal):
        warn_once(f"{known} has no effect here and is not needed")


def family_module(model_type: str) -> str:
    """Return the transformers module that defines a native family."""
    family = model_type.removesuffix("_text")  # gemma3_text is the text model of gemma3
    return f"transformers.models.{family}.modeling_{family}"


def check_class(model: PreTrainedModel, prefix: str | None, known: str) -> None:
    """Raise a ValueError unless the class of `model` is transformers' own <prefix>ForCausalLM.

    known: the supported classes' names, for the message.
    """
    kind = type(model)
    name = f"{kind.__module__}.{kind.__qualname__}"
    way_out = _TAKE_OFF.get(kind.__name__)
    if kind.__module__.split(".")[0] == "peft":
        way_out = "merge the adapters first: model = model.merge_and_unload()"
    if way_out is None and prefix is not None and kind.__name__ == f"{prefix}ForCausalLM":
        home = family_module(model.config.model_type)
        is_there = vars(sys.modules[home]).get(kind.__name__) is kind
        # `is_there` is False if the module was reloaded after the model was built.
        if kind.__module__ == home and (is_there or not replaced_methods(kind)):
            return
        raise ValueError(
            f"Trainer: expected model to be {home}.{kind.__name__}, got {name}, a class of the same name; "
            "fastsft would train it as transformers' own; load it with that class, or train with "
            "transformers' Trainer"
        )
    if way_out is None:
        check_head(model)
    raise ValueError(
        f"Trainer: expected model to be one of {known}, got {kind.__name__} ({name}); "
        + (way_out or "take a wrapper off, or save the model and give its directory")
    )


def check_head(model: PreTrainedModel) -> None:
    """Raise a ValueError for a transformers model that has no next-token logits."""
    head = getattr(model, "get_output_embeddings", None)
    if head is not None and head() is None:
        raise ValueError(
            f"Trainer: expected model to be a causal language model, got {type(model).__name__}, which has "
            "no logits of the next token; load its weights with AutoModelForCausalLM, or train it with "
            "transformers' Trainer"
        )


def check_quantised(model: PreTrainedModel) -> None:
    """Raise a ValueError if a model was loaded with quantised weights."""
    method = getattr(getattr(model, "hf_quantizer", None), "quantization_config", None)
    if getattr(model, "is_quantized", False) or method is not None:
        raise ValueError(
            f"Trainer: model is quantised ({type(method).__name__}), but fastsft trains float weights; load "
            "it without quantization_config, or train with python -m fastsft.train_lora --q_lora True, which "
            "has the base model in 4 bits"
        )
