"""FastChat's training script: `python -m fastsft.train`, or `from fastsft.train import train`.

Flags and defaults: `python -m fastsft.train --help`. Only `train` and `local_rank` are defined here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fastsft.arguments import DataArguments, ModelArguments, TrainingArguments
from fastsft.checkpoints.finished_run import finished_output, record_end
from fastsft.data import (
    IGNORE_TOKEN_ID,
    LazySupervisedDataset,
    SupervisedDataset,
    make_supervised_data_module,
    preprocess,
)
from fastsft.dataset.pages import show_data
from fastsft.devices import use_device
from fastsft.entry import run_script
from fastsft.launcher import join
from fastsft.model import CausalLM, stretch_positions
from fastsft.notices import rank0_print
from fastsft.parsing.call_arguments import read_arguments
from fastsft.parsing.parser import DataclassParser
from fastsft.phase_timeouts import deadline
from fastsft.preflight import leave_out_evaluation
from fastsft.ranks.run_lock import run_lock
from fastsft.reporting.pages import end_page, start_page
from fastsft.reporting.results import save_results
from fastsft.saving import (
    newest_checkpoint,
    prepare_output_directory,
    put_checkpoints_aside,
    trainer_save_model_safe,
)
from fastsft.tokenizer import Tokenizer
from fastsft.trainer import Trainer
from fastsft.training.signals import SignalGuard
from fastsft.training.state import TrainOutput

# `python -m fastsft.train` runs this file as __main__; an import of fastsft.train then gets this module.
sys.modules.setdefault("fastsft.train", sys.modules[__name__])

__all__ = [
    "IGNORE_TOKEN_ID",
    "DataArguments",
    "LazySupervisedDataset",
    "ModelArguments",
    "SupervisedDataset",
    "TrainingArguments",
    "make_supervised_data_module",
    "preprocess",
    "rank0_print",
    "train",
    "trainer_save_model_safe",
]

local_rank: int | None = None


def train(arguments: Sequence[str] | Mapping[str, Any] | None = None, **flags: Any) -> TrainOutput | None:
    """Read the arguments, train, save; resumes when `output_dir` holds a checkpoint. Every rank calls it.

    arguments: words of a command line, or names and values, as `flags` are; by default the command line of
    the program. None for --check_data, which trains nothing. Raises ValueError for what the user can mend
    (flags, data, model), RuntimeError for a run that fails.
    """
    global local_rank
    parser = DataclassParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, args = read_arguments(parser, arguments, flags)
    local_rank = args.local_rank
    data_args.check_files()
    use_device(args.device, args.tf32, args.full_determinism)
    with deadline(args, "init"):
        join(args.ddp_timeout, args.device)

    model = CausalLM.from_pretrained(model_args.model_name_or_path or "", cache_dir=args.cache_dir)
    prepare_output_directory(model.source_directory, args.output_dir or ".")
    with run_lock(args.output_dir or "."):
        stretched = stretch_positions(model.config, args.model_max_length)
        if stretched:
            rank0_print(stretched)
        model.config.use_cache = False
        tokenizer = Tokenizer.from_pretrained(
            str(model.source_directory),
            model_max_length=args.model_max_length,
            padding_side=model_args.padding_side,
        )
        # The fastchat policy pads with unk, as FastChat does; in spans the pad id is free and stays.
        if data_args.mask_policy == "fastchat" and tokenizer.pad_token != tokenizer.unk_token:
            tokenizer.pad_token = tokenizer.unk_token
        with deadline(args, "data"):
            data_module = make_supervised_data_module(tokenizer=tokenizer, data_args=data_args)
        show_data(model, tokenizer, data_args, args.output_dir or ".", data_module)
        if data_args.check_data:
            return None

        if data_module["eval_dataset"] is None:
            leave_out_evaluation(args)
        resume = args.resume_from_checkpoint
        if resume in (None, True) and not args.no_resume:
            finished = finished_output(model, args, tokenizer, data_module["train_dataset"])
            if finished is not None:
                return finished
        trainer = Trainer(model=model, tokenizer=tokenizer, args=args, **data_module)
        if resume is None and args.no_resume:
            put_checkpoints_aside(args.output_dir or ".", model.source_directory)
        elif resume is None:
            resume = newest_checkpoint(args.output_dir or ".") is not None
        trainer.checkpoint_to_resume(resume)
        rank0_print(start_page(trainer, model_args, data_args))
        with SignalGuard() as guard:
            output = trainer.train(resume_from_checkpoint=resume)
            model.config.use_cache = True
            if trainer.is_deepspeed_enabled:
                trainer.save_model()
            else:
                trainer_save_model_safe(trainer)
            save_results(trainer, output)
            trainer.save_state()
            record_end(trainer, output)
            if guard.finish():
                rank0_print("a signal came while the model was saved; the run is finished")
        rank0_print(end_page(trainer))
        return output


if __name__ == "__main__":
    run_script(train)
