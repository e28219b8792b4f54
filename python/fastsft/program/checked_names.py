"""Names that a script changed before it calls `train()`: used, or refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastsft import _C
from fastsft.model.family import refuse_remote_code
from fastsft.model.weights import check_weight_names
from fastsft.program.checked_classes import refuse_patched_classes
from fastsft.script_names.patched_libraries import refuse_patches
from fastsft.script_names.rebound import rebound_data_names, refuse_unused

if TYPE_CHECKING:
    from fastsft.model.causal_lm import CausalLM


def check_names(trainer_class: type) -> None:
    """ValueError for names of the module that `train()` has no use for, and for a Trainer of transformers.

    trainer_class: what `fastsft.train.Trainer` means.
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
    """ValueError for code that FastChat's train() would run for this directory, and fastsft's does not.

    And for weights whose names do not fit its configuration. model: a CausalLM. trusts_code:
    --trust_remote_code.
    """
    check_weight_names(model.config, model.source_directory)
    if trusts_code:
        refuse_remote_code(model.source_directory, model.config, runs_model=model.runs_code)
    family = str(model.config.get("model_type"))
    uses_tokenizer = bool(rebound_data_names())
    prefix = _C.model_families().get(family, "")
    refuse_patched_classes(model.source_directory, family, prefix, uses_tokenizer=uses_tokenizer)
