"""The second half of `train()`: the choice of a start or a resume, and the results' save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.checkpoint.finished_run import (
    AskedRun,
    check_no_other_model,
    check_not_ended,
    finished_output,
    record_end,
)
from fastsft.checkpoint.last_save import LastSaves
from fastsft.checkpoint.load import newest_checkpoint
from fastsft.checkpoint.start import archive_checkpoints
from fastsft.lora.merged_save import check_merged_path, merge_finished, merged_bytes, save_merged
from fastsft.model.model_save import ModelForm
from fastsft.ranks.exchange import AllOrNone
from fastsft.reporting.metrics_files import save_results
from fastsft.script_names.module_names import current, is_rebound
from fastsft.trainer.compat.overrides import saves_in_own_way
from fastsft.trainer.resume import check_not_beyond

if TYPE_CHECKING:
    from fastsft.callbacks.state import TrainOutput
    from fastsft.model.causal_lm import CausalLM
    from fastsft.program.preparation import LoadedData, RunConfig
    from fastsft.trainer.signals import SignalGuard
    from fastsft.trainer.trainer import Trainer


@dataclass(frozen=True)
class Finished:
    """A start without training: the run has ended in an earlier process. output: result of that run."""

    output: TrainOutput


@dataclass(frozen=True)
class Resume:
    """A resume. checkpoint: a directory, or True for the newest checkpoint of `output_dir`."""

    checkpoint: bool | str


@dataclass(frozen=True)
class Fresh:
    """A start at step 0. starts_over: True to archive the checkpoints of `output_dir` (--no_resume)."""

    starts_over: bool


def find_start(config: RunConfig, model: CausalLM, data: LoadedData) -> Finished | Resume | Fresh:
    """Find out whether the run starts, resumes or has finished. Collective.

    If the run has finished before, save its merged model, unless that model is up to date. ValueError if
    `output_dir` has another run's model, or if the merged model cannot be saved.
    """
    args, sets = config.args, (data.train_dataset, data.sets.get("eval_dataset"))
    run = AskedRun(model, args, data.tokenizer, *sets)
    asked: bool | str | None = args.resume_from_checkpoint
    if asked in (None, True) and not args.no_resume:
        output = finished_output(run)
        if output is not None:
            merge_finished(args, config.lora_args, model)
            return Finished(output)
        check_not_ended(run)
    starts_over = asked is None and args.no_resume
    checkpoint = asked
    if asked is None and not starts_over:
        checkpoint = newest_checkpoint(config.output_dir) is not None
    if not checkpoint:
        check_no_other_model(run)
    check_merged_path(args.output_dir, config.lora_args, model)
    return Resume(checkpoint) if checkpoint else Fresh(starts_over)


def prepare_start(trainer: Trainer, config: RunConfig, start: Resume | Fresh) -> bool | str | None:
    """Check `start`, and return the value of `resume_from_checkpoint` for Trainer.train. Collective."""
    resume = start.checkpoint if isinstance(start, Resume) else None
    if isinstance(start, Fresh) and start.starts_over:
        archive_checkpoints(config.output_dir, trainer.model.source_directory)
    checkpoint = trainer.checkpoint_to_resume(resume)
    if checkpoint is not None:
        check_not_beyond(trainer._run, checkpoint)
    saved = ModelForm.of(trainer._run).bytes(trainer._run) if _saves_natively(trainer) else 0
    trainer.bytes_at_end = saved + merged_bytes(config.args, config.lora_args, trainer.model)
    return resume


def save_outputs(
    trainer: Trainer,
    config: RunConfig,
    output: TrainOutput,
    signals: SignalGuard,
    say: Callable[[str], None],
) -> Path | None:
    """Save the model, the merged model and the results; return the merged model's directory. Collective.

    If the disk is full, wait until there is room. Then record the run as finished.
    """
    best = trainer._run.checkpoints.best
    trainer.model.config.use_cache = True
    last = LastSaves(config.args, signals, best.remove_others)
    _save_model(trainer, last)
    merged = None
    if config.lora_args.save_merged:
        merged = last.save("the merged model", lambda: save_merged(trainer))
    _write_end(trainer, output)
    best.remove_others()
    if signals.finish():
        say("a signal came while the model was saved; the run is finished")
    return merged


def _save_model(trainer: Trainer, last: LastSaves) -> None:
    """Save the model. fastsft's own save waits while the disk is full; a script's save is called once."""
    if _saves_natively(trainer):
        last.save("the model", lambda: trainer.save_model(_internal_call=True))
        trainer.upload_saved(trainer.args.output_dir or ".")
    elif trainer.is_deepspeed_enabled:
        trainer.save_model()
    else:
        current("trainer_save_model_safe")(trainer)


def _saves_natively(trainer: Trainer) -> bool:
    """True if fastsft's own code writes the final model to `output_dir`, False if a script's does."""
    by_script = is_rebound("trainer_save_model_safe") and not trainer.is_deepspeed_enabled
    return not (by_script or saves_in_own_way(trainer))


def _write_end(trainer: Trainer, output: TrainOutput) -> None:
    """Write the results, the state and the record of the finished run on rank 0. Collective.

    If rank 0 fails, all ranks raise.
    """
    agreement = AllOrNone("writing the results of the run")

    def write() -> None:
        save_results(trainer, output)
        trainer.save_state()
        record_end(trainer._run, output)

    agreement.attempt(write)
    agreement.settle(None)
