"""FastChat's LoraArguments, with fastsft's own fields for adapters."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from fastsft.arguments.given import RecordsGiven, RefusedFlagsError, was_given
from fastsft.arguments.support import apply_support, default_of, ignored, supported
from fastsft.runtime.messages import warn_once


@dataclass
class LoraArguments(RecordsGiven):
    """Low-rank adapters (LoRA)."""

    lora: bool = supported(
        False, "train low-rank adapters, the model stays as it is; fastsft.train_lora does"
    )
    lora_r: int = supported(8, "rank of the adapters")
    lora_alpha: int = supported(16, "scaling is lora_alpha / lora_r")
    lora_dropout: float = supported(0.05, "probability of dropping what adapters read")
    lora_target_modules: list[str] = supported(
        ["q_proj", "v_proj"],
        "linear layers to adapt, by the end of their names; all-linear, or an expression",
    )
    lora_weight_path: str = supported("", "directory of an adapter to go on from; its configuration counts")
    lora_bias: Literal["none", "all", "lora_only"] = supported("none", "biases that are trained as well")
    q_lora: bool = supported(
        False, "linear layers of the base model's blocks in 4 bits (NF4 with double quantisation, QLoRA)"
    )
    lora_rslora: bool = supported(False, "scaling is lora_alpha / sqrt(lora_r) (rsLoRA)")
    lora_modules_to_save: list[str] = supported(
        [], "modules that are trained whole, by the end of their names"
    )
    save_merged: bool = supported(False, "write the merged model, too, to the folder merged of output_dir")

    def __post_init__(self) -> None:
        apply_support(self, LoraArguments)
        if self.lora:
            self._check_values()
            return
        idle = [
            field.name
            for field in dataclasses.fields(LoraArguments)
            if field.name != "lora"
            and (was_given(self, field.name) or getattr(self, field.name) != default_of(field))
        ]
        # An explicit --lora False switches off adapter flags that come from a --config file.
        if idle and was_given(self, "lora"):
            warn_once(f"--lora False: --{', --'.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect")
        elif idle:
            raise RefusedFlagsError(
                f"--{', --'.join(idle)}: expected with --lora True, or in python -m fastsft.train_lora; "
                f"without adapters {'it has' if len(idle) == 1 else 'they have'} no effect: add --lora "
                f"True, or leave {'it' if len(idle) == 1 else 'them'} out",
                idle,
            )

    def _check_values(self) -> None:
        """Raise ValueError for adapters that would change nothing; warn of unusual values."""
        if self.lora_alpha == 0:
            raise ValueError(
                "--lora_alpha: expected another number than 0, with which adapters are multiplied"
            )
        if self.lora_alpha < 0:
            warn_once(f"--lora_alpha {self.lora_alpha} takes off what adapters add; usual are 8 to 64")
        if self.lora_r > _MOST_RANK:
            warn_once(
                f"--lora_r {self.lora_r:,}: adapters of such a rank are larger than most linear layers; "
                "usual are 4 to 256"
            )
        if 1 > self.lora_dropout > _MOST_DROPOUT:
            warn_once(
                f"--lora_dropout {self.lora_dropout:g} drops most of what adapters read; usual are 0 to 0.1"
            )


_MOST_RANK, _MOST_DROPOUT = 1024, 0.5


@dataclass
class LoraScriptArguments(LoraArguments):
    """LoraArguments of fastsft.train_lora, which always trains adapters. ValueError for --lora False."""

    lora: bool = supported(True, "train low-rank adapters; False is fastsft.train's")
    flash_attn: bool = ignored(
        False,
        "FastChat's patch of attention",
        "the engine computes exact attention without padding",
        quiet=True,
    )

    def __post_init__(self) -> None:
        if not self.lora:
            raise ValueError("--lora False: fastsft.train_lora trains adapters; run fastsft.train instead")
        super().__post_init__()
