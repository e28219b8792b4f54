"""FastChat's training script: `python -m fastsft.train`, or `from fastsft.train import train`.

Flags and defaults: `python -m fastsft.train --help`. Only `train` and `local_rank` are defined here. As in
FastChat's module, `train` uses what a script binds to the names of this one (script_names/rebound.py).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

# Run by its path, this folder is in sys.path, where its names would hide those of other packages.
if __name__ == "__main__" and __spec__ is None:
    _FOLDER = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [
        *(entry for entry in sys.path if os.path.realpath(entry) != _FOLDER),
        os.path.dirname(_FOLDER),
    ]
if __name__ == "__main__":
    from fastsft.runtime.early_interrupt import end_at_interrupt

    end_at_interrupt()

from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
from fastsft.arguments.from_transformers import as_arguments, data_settings
from fastsft.arguments.parsing.call_arguments import read_arguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.callbacks.state import TrainOutput
from fastsft.checkpoint.aside import put_checkpoints_aside
from fastsft.checkpoint.checkpoint import newest_checkpoint
from fastsft.checkpoint.external.trainer import trainer_save_model_safe
from fastsft.checkpoint.finished_run import (
    check_no_other_model,
    check_not_ended,
    finished_output,
    record_end,
)
from fastsft.checkpoint.last_save import LastSaves
from fastsft.checkpoint.restart import go_on_after_restart
from fastsft.checkpoint.template_date import keep_template_date
from fastsft.data.chat.labelling import LabelSettings
from fastsft.data.chat.policy_choice import pad_for, settle_arguments, settle_script_policy
from fastsft.data.chat.template_saving import keep_trained_template
from fastsft.data.data_module import make_supervised_data_module
from fastsft.data.embedding_rows import check_embedding
from fastsft.data.supervised import (
    IGNORE_TOKEN_ID,
    LazySupervisedDataset,
    SupervisedDataset,
    preprocess,
)
from fastsft.inspection.data_report import show_data
from fastsft.lora.merged_save import check_merged_place, merge_finished, merged_bytes, save_merged
from fastsft.lora.opening import open_model
from fastsft.model.directory import ModelForm, prepare_output_directory
from fastsft.program.checked_names import check_directory, check_names
from fastsft.program.main import run_script
from fastsft.ranks.agreement import Agreement
from fastsft.ranks.process_group import join
from fastsft.ranks.run_lock import run_lock
from fastsft.reporting.end_page import end_page
from fastsft.reporting.metrics_files import save_results
from fastsft.reporting.start_page import start_page
from fastsft.runtime.devices import use_device
from fastsft.runtime.messages import rank0_print
from fastsft.runtime.short_traceback import short_in_cells
from fastsft.runtime.timeouts import deadline
from fastsft.script_names import reexports
from fastsft.script_names.rebound import is_rebound, rebound_data_names
from fastsft.tokenizer.run_tokenizer import run_tokenizer
from fastsft.trackers.tracker import check_trackers
from fastsft.trainer.agreed_inputs import agree_on_model, meet_and_agree
from fastsft.trainer.preflight import (
    check_best_of_run,
    leave_out_evaluation,
    saves_in_own_way,
    warn_of_no_evaluation,
)
from fastsft.trainer.resume import check_not_beyond
from fastsft.trainer.schedule import check_schedule
from fastsft.trainer.signals import SAVING, SignalGuard
from fastsft.trainer.trainer import Trainer

if TYPE_CHECKING:  # the name Sequence is FastChat's, that of typing
    from collections.abc import Mapping, Sequence

# `python -m fastsft.train` runs this file as __main__; an import of fastsft.train then gets this module.
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
__all__ += reexports.star_names()

local_rank: int | None = None


def __getattr__(name: str) -> Any:
    """The other names of FastChat's module, of all its releases."""
    if name in reexports.NAMES:
        return reexports.look_up(name)
    raise AttributeError(f"module 'fastsft.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *reexports.NAMES})


@short_in_cells(ValueError)
def train(arguments: Sequence[str] | Mapping[str, Any] | None = None, **flags: object) -> TrainOutput | None:
    """Read the arguments, train, save; resumes when `output_dir` holds a checkpoint. Every rank calls it.

    arguments: words of a command line, or names and values, as `flags` are; by default the command line of
    the program. None for --check_data, which trains nothing. Raises ValueError for what the user can fix
    (flags, data, model), RuntimeError for a run that fails.
    """
    return train_with(LoraArguments, arguments, flags)


def train_with(
    lora_class: type[LoraArguments],
    arguments: Sequence[str] | Mapping[str, Any] | None,
    flags: Mapping[str, object],
) -> TrainOutput | None:
    """`train`, with the class of its arguments about LoRA."""
    global local_rank
    check_names(Trainer)
    parser = DataclassParser((ModelArguments, DataArguments, TrainingArguments, lora_class))
    model_args, data_args, given, lora_args = read_arguments(parser, arguments, flags)
    args = as_arguments(given)
    settings = data_settings(data_args)
    local_rank = args.local_rank
    files = None if is_rebound("make_supervised_data_module") else settings
    if files is not None:
        files.check_files()
        check_best_of_run(Trainer, args, files.eval_data_path is not None)
    check_schedule(args)
    check_trackers(args.report_to, args)
    use_device(str(args.device), args.tf32, args.full_determinism)
    with deadline(args, "init"):
        meet_and_agree(args, model_args, data_args, files, lora_args)
        join(args.ddp_timeout, str(args.device))

    trusts_code = bool(getattr(model_args, "trust_remote_code", False))
    model = open_model(
        model_args.model_name_or_path or "", lora_args, args.cache_dir, args.seed, args.engine,
        trust_remote_code=trusts_code,
    )  # fmt: skip
    check_directory(model, trusts_code=trusts_code)
    prepare_output_directory(model.source_directory, args.output_dir or ".")
    with run_lock(args.output_dir or "."):
        stretched = model.settle_positions(args.model_max_length)
        if stretched:
            rank0_print(f"warning: {stretched}")
        model.config.use_cache = False
        tokenizer = run_tokenizer(
            str(model.source_directory),
            args.model_max_length,
            getattr(model_args, "padding_side", "right"),
        )
        go_on_after_restart(args)
        data_args = keep_template_date(data_args, args)
        own_files = files is not None and not rebound_data_names()
        label_args = settle_arguments(data_args, tokenizer) if own_files else data_args
        labels = settle_script_policy(LabelSettings.from_arguments(label_args))
        pad_for(labels, tokenizer)
        agree_on_model(model, tokenizer)
        if own_files:
            check_embedding(tokenizer, labels, model.vocab_size())
        with deadline(args, "data"):
            data_module = make_supervised_data_module(tokenizer=tokenizer, data_args=label_args)
        labelling = getattr(data_module["train_dataset"], "labelling", None) or {}
        keep_trained_template(tokenizer, labels, labelling, settings.save_chat_template)
        show_data(model, tokenizer, settings, args.output_dir or ".", data_module)
        if settings.check_data:
            return None

        if data_module.get("eval_dataset") is None:
            leave_out_evaluation(args)
        else:
            warn_of_no_evaluation(args)
        resume: bool | str | None = args.resume_from_checkpoint
        if resume in (None, True) and not args.no_resume:
            finished = finished_output(model, args, tokenizer, data_module["train_dataset"])
            if finished is not None:
                merge_finished(args, lora_args, model)
                return finished
            check_not_ended(model, args, tokenizer, data_module["train_dataset"])
        starts_over = resume is None and args.no_resume
        if resume is None and not starts_over:
            resume = newest_checkpoint(args.output_dir or ".") is not None
        if not resume:
            check_no_other_model(model, args, tokenizer, data_module["train_dataset"])
        check_merged_place(args.output_dir, lora_args, model)
        trainer = Trainer(model=model, tokenizer=tokenizer, args=args, **data_module)
        if starts_over:
            put_checkpoints_aside(args.output_dir or ".", model.source_directory)
        checkpoint = trainer.checkpoint_to_resume(resume)
        if checkpoint is not None:
            check_not_beyond(trainer, checkpoint)
        saved = ModelForm.of(trainer).bytes(trainer) if _saves_natively(trainer) else 0
        trainer.bytes_at_end = saved + merged_bytes(args, lora_args, model)
        rank0_print(start_page(trainer, model_args, data_args, lora_args))
        with SignalGuard(SAVING) as guard:
            output = trainer.train(resume_from_checkpoint=resume)
            model.config.use_cache = True
            last = LastSaves(args, guard, trainer.best_model.remove_others)
            _save_model(trainer, last)
            merged = None
            if lora_args.save_merged:
                merged = last.save("the merged model", lambda: save_merged(trainer))
            _write_end(trainer, output)
            trainer.best_model.remove_others()
            if guard.finish():
                rank0_print("a signal came while the model was saved; the run is finished")
        rank0_print(end_page(trainer, merged, keeps_last=trainer.best_model.keeps_last))
        return output


def _write_end(trainer: Trainer, output: TrainOutput) -> None:
    """Results, state and record of the end, by rank 0; all ranks end as it does; collective."""
    agreement = Agreement("writing the results of the run")

    def write() -> None:
        save_results(trainer, output)
        trainer.save_state()
        record_end(trainer, output)

    agreement.attempt(write)
    agreement.settle(None)


def _saves_natively(trainer: Trainer) -> bool:
    """True if the model of the end goes to `output_dir` by fastsft's own code, not by a script's."""
    by_script = is_rebound("trainer_save_model_safe") and not trainer.is_deepspeed_enabled
    return not (by_script or saves_in_own_way(trainer))


def _save_model(trainer: Trainer, last: LastSaves) -> None:
    """A script's own save is called once; fastsft's waits for room, and uploads what is there then."""
    if _saves_natively(trainer):
        last.save("the model", lambda: trainer.save_model(_internal_call=True))
        trainer.upload_saved(trainer.args.output_dir or ".")
    elif trainer.is_deepspeed_enabled:
        trainer.save_model()
    else:
        trainer_save_model_safe(trainer)


if __name__ == "__main__":
    run_script(train)
