"""FastChat's LoraArguments, and fastsft's own about adapters."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from fastsft.arguments.support import default_of, inert, used
from fastsft.arguments.treatment import apply_treatments


@dataclass
class LoraArguments:
    """Low-rank adapters (LoRA)."""

    lora: bool = used(False, "train low-rank adapters, the model stays as it is; fastsft.train_lora does")
    lora_r: int = used(8, "rank of the adapters")
    lora_alpha: int = used(16, "scaling is lora_alpha / lora_r")
    lora_dropout: float = used(0.05, "probability of dropping what adapters read")
    lora_target_modules: list[str] = used(
        ["q_proj", "v_proj"],
        "linear layers to adapt, by the end of their names; all-linear, or an expression",
    )
    lora_weight_path: str = used("", "directory of an adapter to go on from; its configuration counts")
    lora_bias: Literal["none", "all", "lora_only"] = used("none", "biases that are trained as well")
    q_lora: bool = used(
        False, "linear layers of the base model's blocks in 4 bits (NF4 with double quantisation, QLoRA)"
    )
    lora_rslora: bool = used(False, "scaling is lora_alpha / sqrt(lora_r) (rsLoRA)")
    lora_modules_to_save: list[str] = used([], "modules that are trained whole, by the end of their names")
    save_merged: bool = used(False, "write the merged model, too, to the folder merged of output_dir")

    def __post_init__(self) -> None:
        apply_treatments(self, LoraArguments)
        if self.lora:
            return
        for field in dataclasses.fields(LoraArguments):
            if getattr(self, field.name) != default_of(field):
                raise ValueError(
                    f"--{field.name}: expected with --lora True, or in python -m fastsft.train_lora; without "
                    "adapters it has no effect: add --lora True, or leave it out"
                )


@dataclass
class LoraScriptArguments(LoraArguments):
    """Those of fastsft.train_lora, which trains adapters. ValueError for --lora False."""

    lora: bool = used(True, "train low-rank adapters; False is fastsft.train's")
    flash_attn: bool = inert(
        False,
        "FastChat's patch of attention",
        "the engine computes exact attention without padding",
        quiet=True,
    )

    def __post_init__(self) -> None:
        if not self.lora:
            raise ValueError("--lora False: fastsft.train_lora trains adapters; run fastsft.train instead")
        super().__post_init__()
