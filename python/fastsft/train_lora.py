"""FastChat's train_lora: trains LoRA adapters with the loop and flags of fastsft.train.

`python -m fastsft.train_lora FLAGS` is `python -m fastsft.train --lora True FLAGS`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

# If this file is run by its path, its folder is in sys.path, and modules in it would hide other packages.
if __name__ == "__main__" and __spec__ is None:
    _FOLDER = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [
        *(entry for entry in sys.path if os.path.realpath(entry) != _FOLDER),
        os.path.dirname(_FOLDER),
    ]
if __name__ == "__main__":
    from fastsft.runtime.errors import end_at_interrupt

    end_at_interrupt()

from fastsft import train as _train
from fastsft.arguments import DataArguments, ModelArguments, TrainingArguments
from fastsft.arguments.lora import LoraScriptArguments as LoraArguments
from fastsft.llama2_flash_attn_monkey_patch import replace_llama_attn_with_flash_attn
from fastsft.lora.peft_modules import get_peft_state_maybe_zero_3, maybe_zero_3
from fastsft.program.main import run_script
from fastsft.train import Trainer, make_supervised_data_module

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastsft.callbacks.state import TrainOutput

__all__ = [
    "DataArguments",
    "LoraArguments",
    "ModelArguments",
    "Trainer",
    "TrainingArguments",
    "get_peft_state_maybe_zero_3",
    "make_supervised_data_module",
    "maybe_zero_3",
    "replace_llama_attn_with_flash_attn",
    "train",
]
_OF_TRAIN = ("DataArguments", "ModelArguments", "Trainer", "TrainingArguments", "make_supervised_data_module")
_OWN = {name: globals()[name] for name in __all__ if name in globals()}


def train(arguments: Sequence[str] | Mapping[str, Any] | None = None, **flags: object) -> TrainOutput | None:
    """Train LoRA adapters as `fastsft.train.train` does with --lora True, and save only the adapter.

    arguments, flags and errors: as in `fastsft.train.train`. ValueError also if a script has replaced names
    of this module, since `train` would not use the replacements. The error tells where to set each name
    instead.
    """
    for name, own in _OWN.items():
        if globals()[name] is not own:
            where = "fastsft.train" if name in _OF_TRAIN else "a script that calls Trainer itself"
            raise ValueError(
                f"fastsft.train_lora.{name} was set, which train() does not use: set it in {where}"
            )
    return _train.train(arguments, lora_class=LoraArguments, **flags)


if __name__ == "__main__":
    run_script(train, runs_scripts=False)
