"""transformers' tables of functions: what a forward looks up in them by the configuration's names."""

from __future__ import annotations

import functools
import sys

from fastsft.model.alterations.finding import Alteration
from fastsft.model.alterations.reach import Reach
from fastsft.originals.functions import described, is_defined_there

# Exact causal attention, each: which one computes it is a question of speed.
_ATTENTION = {
    "sdpa": ("transformers.integrations.sdpa_attention", "sdpa_attention_forward"),
    "flash_attention_2": ("transformers.integrations.flash_attention", "flash_attention_forward"),
    "flash_attention_3": ("transformers.integrations.flash_attention", "flash_attention_forward"),
    "flex_attention": ("transformers.integrations.flex_attention", "flex_attention_forward"),
}
_FLASH = _ATTENTION["flash_attention_2"]
_MASKS = {
    "eager": "eager_mask", "sdpa": "sdpa_mask", "flash_attention_2": "flash_attention_mask",
    "flash_attention_3": "flash_attention_mask", "flex_attention": "flex_attention_mask",
}  # fmt: skip
_NATIVE = "causal softmax attention inside each row"
SILU_CLASSES = ("torch.nn.modules.activation.SiLU", "transformers.activations.SiLUActivation")
GELU_CLASSES = ("transformers.activations.GELUTanh", "transformers.activations.PytorchGELUTanh")
_TAKE_BACK = "take the change back, or train with transformers' Trainer"
_WAY_OUT = 'load the model with attn_implementation="sdpa", or train with transformers\' Trainer'


def follow_registries(reach: Reach, implementation: str) -> None:
    """The attention, the mask and the loss that are registered, into `reach`."""
    reach.found += _attention(reach, implementation) + _mask(implementation) + _loss(reach, "ForCausalLM")


def follow_builders(reach: Reach, activation: str = "silu") -> None:
    """Follow what a model that is still to be built takes from tables: its activation and its rotation."""
    table = _table("transformers.activations", "ACT2FN")
    kind = dict.get(table, activation) if isinstance(table, dict) else None
    expected, words = (SILU_CLASSES, "SiLU") if activation == "silu" else (GELU_CLASSES, "GELU's tanh form")
    if isinstance(kind, type) and f"{kind.__module__}.{kind.__qualname__}" in expected:
        reach.follow_class(kind)
    elif kind is not None:
        where = f'transformers.activations.ACT2FN["{activation}"]'
        reach.found.append(Alteration(where, f"is replaced by {described(kind)}", words, _TAKE_BACK))
    units = "transformers.modeling_rope_utils"
    for name, value in (_table(units, "ROPE_INIT_FUNCTIONS") or {}).items():
        own = getattr(value, "__name__", "")
        if name in ("default", "linear", "llama3") and not (
            name in own and is_defined_there(value, units, own)
        ):
            where = f'{units}.ROPE_INIT_FUNCTIONS["{name}"]'
            found = f"is replaced by {described(value)}"
            reach.found.append(Alteration(where, found, f'rope_type "{name}"', _TAKE_BACK))


def _attention(reach: Reach, implementation: str) -> list[Alteration]:
    table = _table("transformers.modeling_utils", "ALL_ATTENTION_FUNCTIONS")
    if table is None or implementation == "eager":  # eager is a function of the model's own module
        return []
    where = f'transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["{implementation}"]'
    value = table.get(implementation)
    home = _ATTENTION.get(implementation)
    if home is None and "/" in implementation and isinstance(value, functools.partial):
        home, value = _FLASH, value.func  # a flash attention of the hub, called by transformers' own
    if home is None:
        found = f"is {described(value)}" if value is not None else "is not there"
        return [Alteration(where, found, _NATIVE, _WAY_OUT)]
    if not is_defined_there(value, *home):
        return [Alteration(where, f"is replaced by {described(value)}", _NATIVE, _WAY_OUT)]
    reach.follow_name(*home)
    return []


def _mask(implementation: str) -> list[Alteration]:
    table = _table("transformers.masking_utils", "ALL_MASK_ATTENTION_FUNCTIONS")
    value = None if table is None else table.get(implementation)
    if value is None:  # releases without this table, or the library refuses the name itself
        return []
    kind = _MASKS.get(implementation, "flash_attention_mask" if "/" in implementation else "")
    name = getattr(value, "__name__", "")
    if kind and name.startswith(kind) and is_defined_there(value, "transformers.masking_utils", name):
        return []
    where = f'transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["{implementation}"]'
    return [Alteration(where, f"is replaced by {described(value)}", _NATIVE, _WAY_OUT)]


def _loss(reach: Reach, name: str) -> list[Alteration]:
    table = _table("transformers.loss.loss_utils", "LOSS_MAPPING")
    if table is None:
        return []
    value = table.get(name)
    if is_causal_lm_loss(value):
        reach.follow_name("transformers.loss.loss_utils", "ForCausalLMLoss")
        return []
    return [
        Alteration(
            f'transformers.loss.loss_utils.LOSS_MAPPING["{name}"]', f"is replaced by {described(value)}",
            "the cross entropy of the next token", _TAKE_BACK,
        )
    ]  # fmt: skip


def is_causal_lm_loss(value: object) -> bool:
    """True if this is transformers' cross entropy of the next token."""
    return is_defined_there(value, "transformers.loss.loss_utils", "ForCausalLMLoss")


def _table(module: str, name: str) -> dict[str, object] | None:
    return vars(sys.modules[module]).get(name) if module in sys.modules else None
