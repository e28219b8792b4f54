"""Adapters of single experts, of transformers 4, as those of the one parameter that transformers 5 has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fastsft.lora.adapter_files import AdapterDirectory
from fastsft.lora.targets import Targets

if TYPE_CHECKING:
    from fastsft.model.generic.causal_lm import GenericCausalLM


def take_older_experts(adapter: AdapterDirectory, model: GenericCausalLM, targets: Targets) -> None:
    """Put the tensors of single experts in `adapter` together, by peft's own rules; others stay as they are.

    Source: set_peft_model_state_dict of peft.
    """
    joined = [name for each in targets.adapters if each.experts for name in each.shapes()]
    if all(name in adapter.shapes for name in joined):
        return
    try:
        from peft import LoraConfig
        from peft.utils.transformers_weight_conversion import (
            convert_peft_adapter_state_dict_for_transformers as convert,
        )
    except ImportError:  # transformers 4
        return
    try:
        found = convert(model._empty(torch.float32), LoraConfig(), adapter.tensors())
    except (ValueError, RuntimeError, KeyError):  # other ranks from expert to expert; AdapterDirectory.check
        return
    adapter.replace(found)
