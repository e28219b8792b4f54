"""The functions of FastChat's train_lora.py that scripts gather an adapter with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def maybe_zero_3(param: torch.Tensor) -> torch.Tensor:
    """A copy of a parameter on the CPU; gathered first where DeepSpeed's ZeRO 3 holds it in parts."""
    if not hasattr(param, "ds_id"):
        return param.detach().cpu().clone()
    from deepspeed import zero  # type: ignore[import-not-found]

    with zero.GatheredParameters([param]):
        return param.data.detach().cpu().clone()


def get_peft_state_maybe_zero_3(
    named_params: Iterable[tuple[str, torch.Tensor]], bias: str
) -> dict[str, torch.Tensor]:
    """Copies of the adapters among the parameters of a PeftModel, by their names there.

    bias: none; all: with every bias; lora_only: with the biases of the adapted modules, where FastChat's own
    function fails. NotImplementedError for others.
    """
    if bias not in ("none", "all", "lora_only"):
        raise NotImplementedError(f"bias: expected none, all or lora_only, got {bias!r}")
    named = dict(named_params)
    kept = {name: value for name, value in named.items() if "lora_" in name}
    if bias == "all":
        kept = {name: value for name, value in named.items() if "lora_" in name or "bias" in name}
    elif bias == "lora_only":
        modules = {name.split("lora_")[0] for name in kept}
        of_modules = {f"{module}{part}" for module in modules for part in ("bias", "base_layer.bias")}
        kept |= {name: value for name, value in named.items() if name in of_modules}
    return {name: maybe_zero_3(value) for name, value in kept.items()}
