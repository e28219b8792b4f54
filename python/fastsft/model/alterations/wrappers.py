"""Objects around a model of transformers, and classes that only look like one; the way out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fastsft.originals.classes import replaced_methods

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What wraps a model under which class names, and how a script takes it off.
_TAKE_OFF = {
    "DistributedDataParallel": "give model.module: fastsft averages gradients itself",
    "DataParallel": "give model.module, and start one process a device with torchrun",
    "FullyShardedDataParallel": "give the model that it wraps; --fsdp shards it",
    "DeepSpeedEngine": "give engine.module; --deepspeed takes the file",
}


def family_module(model_type: str) -> str:
    """transformers' module with the classes of a native family."""
    family = model_type.removesuffix("_text")  # gemma3_text is the text model of gemma3
    return f"transformers.models.{family}.modeling_{family}"


def check_class(model: PreTrainedModel, prefix: str | None, known: str) -> None:
    """ValueError unless `model` is transformers' own <prefix>ForCausalLM, by class and not by name alone."""
    kind = type(model)
    name = f"{kind.__module__}.{kind.__qualname__}"
    way_out = _TAKE_OFF.get(kind.__name__)
    if kind.__module__.split(".")[0] == "peft":
        way_out = "merge the adapters first: model = model.merge_and_unload()"
    if way_out is None and prefix is not None and kind.__name__ == f"{prefix}ForCausalLM":
        home = family_module(model.config.model_type)
        is_there = vars(sys.modules[home]).get(kind.__name__) is kind
        if kind.__module__ == home and (is_there or not replaced_methods(kind)):  # of before a reload
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
    """ValueError for a model of transformers that gives no logits of the next token."""
    head = getattr(model, "get_output_embeddings", None)
    if head is not None and head() is None:
        raise ValueError(
            f"Trainer: expected model to be a causal language model, got {type(model).__name__}, which has "
            "no logits of the next token; load its weights with AutoModelForCausalLM, or train it with "
            "transformers' Trainer"
        )


def check_quantised(model: PreTrainedModel) -> None:
    """ValueError for a model that was loaded with weights of fewer bits."""
    method = getattr(getattr(model, "hf_quantizer", None), "quantization_config", None)
    if getattr(model, "is_quantized", False) or method is not None:
        raise ValueError(
            f"Trainer: model is quantised ({type(method).__name__}), but fastsft trains float weights; load "
            "it without quantization_config, or train with python -m fastsft.train_lora --q_lora True, which "
            "has the base model in 4 bits"
        )
