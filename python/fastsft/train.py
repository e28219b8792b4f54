"""FastChat's training script: `python -m fastsft.train`, or `from fastsft.train import train`.

Flags and defaults: `python -m fastsft.train --help`. Only `train` and `local_rank` are defined here. If a
script replaces names of this module, `train` uses the replacements, as in FastChat
(script_names/module_names.py).
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

from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
from fastsft.callbacks.state import TrainOutput
from fastsft.checkpoint.external.trainer import trainer_save_model_safe
from fastsft.data.data_module import make_supervised_data_module
from fastsft.data.supervised import (
    IGNORE_TOKEN_ID,
    LazySupervisedDataset,
    SupervisedDataset,
    preprocess,
)
from fastsft.program.main import run_script
from fastsft.program.outcome import Finished, find_start, prepare_start, save_outputs
from fastsft.program.preparation import check_evaluation, load_data, load_model, meet_ranks, read_config
from fastsft.ranks.output_directory import run_lock
from fastsft.reporting.end_page import end_page
from fastsft.reporting.start_page import start_page
from fastsft.runtime.interactive import short_in_cells
from fastsft.runtime.messages import rank0_print
from fastsft.script_names import module_names
from fastsft.trainer.signals import SAVING, SignalGuard
from fastsft.trainer.trainer import Trainer

if TYPE_CHECKING:  # at run time, `__getattr__` returns typing.Sequence, as FastChat's module does
    from collections.abc import Mapping, Sequence

# `python -m fastsft.train` runs this file as `__main__`. This line lets later imports of fastsft.train find
# the same module instead of running the file a second time.
sys.modules.setdefault("fastsft.train", sys.modules[__name__])

__all__ = [
    "IGNORE_TOKEN_ID",
    "DataArguments",
    "LazySupervisedDataset",
    "ModelArguments",
    "SupervisedDataset",
    "Trainer",
    "TrainingArguments",
    "local_rank",
    "make_supervised_data_module",
    "preprocess",
    "rank0_print",
    "train",
    "trainer_save_model_safe",
]
__all__ += module_names.star_names()

local_rank: int | None = None


def __getattr__(name: str) -> Any:
    """Return a name that FastChat's module has in any FastChat release, and that is not defined here."""
    if name in module_names.NAMES:
        return module_names.look_up(name)
    raise AttributeError(f"module 'fastsft.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *module_names.NAMES})


@short_in_cells(ValueError)
def train(
    arguments: Sequence[str] | Mapping[str, Any] | None = None,
    *more: object,
    lora_class: type[LoraArguments] = LoraArguments,
    **flags: object,
) -> TrainOutput | None:
    """Read the arguments, train, and save the model; resume if `output_dir` has a checkpoint.

    Every rank must call this function. arguments: the words of a command line, or a mapping from flags to
    values; default: the command line of the program. flags: further flags by name. lora_class: class of the
    LoRA arguments. Returns None with --check_data, which trains nothing. ValueError for errors that the user
    can fix (flags, data, model), RuntimeError if the run fails.
    """
    global local_rank
    if more:
        given = ", ".join(map(repr, [arguments, *more]))
        raise TypeError(
            f"train: expected a list of words or a mapping, or names with values, got {given}; write "
            "train(model_name_or_path=..., data_path=..., output_dir=...)"
        )
    classes = ModelArguments, DataArguments, TrainingArguments, lora_class
    config = read_config(Trainer, classes, arguments, flags)
    local_rank = config.args.local_rank
    meet_ranks(config)
    model = load_model(config)
    with run_lock(config.output_dir):
        data = load_data(config, model, make_supervised_data_module, rank0_print)
        if config.settings.check_data:
            return None
        check_evaluation(config.args, data)
        start = find_start(config, model, data)
        if isinstance(start, Finished):
            return start.output
        trainer = Trainer(model=model, tokenizer=data.tokenizer, args=config.args, **data.sets)
        resume = prepare_start(trainer, config, start)
        rank0_print(start_page(trainer._run, config.model_args, config.data_args, config.lora_args))
        with SignalGuard(SAVING) as signals:
            output = trainer.train(resume_from_checkpoint=resume)
            merged = save_outputs(trainer, config, output, signals, rank0_print)
        keeps_last = trainer._run.checkpoints.best.keeps_last
        rank0_print(end_page(trainer._run, merged, keeps_last=keeps_last))
        return output


if __name__ == "__main__":
    run_script(train, runs_scripts=False)
