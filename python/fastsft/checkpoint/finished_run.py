"""The record of a finished run. If the same run is started again, it returns the recorded result at once.

Rules: docs/spec/trainer_semantics.md, section 17.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft import _C
from fastsft.callbacks.state import TrainerState, TrainOutput
from fastsft.checkpoint.content import recover, rotate_what_is_left, source_checkpoint
from fastsft.checkpoint.early_end import EVAL_DATA, describe_stopping
from fastsft.checkpoint.run_identity import TRAINED_BY, describe_request
from fastsft.checkpoint.state_files import Count, ListOf, Number, Shape, misfit
from fastsft.data.token_rows import TokenRows, untouched_rows
from fastsft.model.output_directory import is_kept_apart
from fastsft.model.weight_identity import is_comparable
from fastsft.planning.run_plan import RunPlan
from fastsft.ranks.exchange import AllOrNone, on_rank0
from fastsft.ranks.output_directory import check_still_held, writes_small_files
from fastsft.reporting.status import ProgressEvents, Run, Status
from fastsft.runtime.file_calls import removed
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell
from fastsft.runtime.output_files import archive_foreign, write_output
from fastsft.runtime.regular_files import read_json, read_json_object
from fastsft.tokenizer.files import TEMPLATES, is_tokenizer_file

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.checkpoint.saved_run import SavedRun
    from fastsft.model.causal_lm import CausalLM

RECORD_NAME = "fastsft_finished.json"
_VERSION = 1
_OF_ADAPTERS = ("adapter_config.json", "adapter_model.safetensors")
_RECORD: Mapping[str, Shape] = {
    "format_version": Count,
    "step": Count,
    "training_loss": Number,
    "metrics": dict,
    "request": {"planned_steps": Count},
    "files": dict,
}


@dataclass(frozen=True)
class AskedRun:
    """A run that is about to start, or that has ended: what it trains, on what, and how."""

    model: CausalLM
    args: TrainingArguments
    tokenizer: object
    train_dataset: object
    eval_dataset: object = None

    @property
    def folder(self) -> Path:
        """The output directory."""
        return Path(self.args.output_dir or ".")

    @property
    def is_labelled_here(self) -> bool:
        """False for a script's own data set, because its items are unknown until they are read."""
        return untouched_rows(self.train_dataset, label=False) is not None

    def request(self) -> dict[str, Any]:
        """Return what determines the result, as JSON values."""
        args, rows = self.args, TokenRows.from_dataset(self.train_dataset, self.args.model_max_length)
        request = {
            **describe_request(args, self.tokenizer, self.train_dataset, rows),
            "planned_steps": RunPlan.of(args, len(rows)).max_steps,
            "model": str(Path(self.model.source_directory).resolve()),
            **_adapters(self.model),
            **describe_stopping(args, self.eval_dataset),
            **{
                name: getattr(args, name)
                for name in ("save_dtype", "max_shard_size", "load_best_model_at_end")
            },
        }
        return dict(json.loads(json.dumps(request)))


def finished_output(run: AskedRun) -> TrainOutput | None:
    """Return this run's result if it has already finished in `output_dir`. Collective.

    The result is returned, with a message, if there are a checkpoint, unchanged model files, and a record
    with the same request: data, arguments that matter for a resume, model directory, dtype and file sizes of
    the weights. Otherwise return None; the caller then resumes or begins the run, with the same result. Also
    return None for a script's own data set, because its items are unknown until they are read.
    """
    if not run.is_labelled_here:
        return None
    folder = run.folder
    record = on_rank0(f"looking for a finished run in {folder}", lambda: _matching_record(run))
    if record is None:
        return None
    step = record["step"]
    _remove_what_is_left(run, record["best"])
    _tell_parent(folder, record)
    tell(
        f"{folder}: this run is finished: step {step} of {step}; nothing is trained, and --no_resume True "
        "trains it again"
    )
    return TrainOutput(step, record["training_loss"], record["metrics"])


def _remove_what_is_left(run: AskedRun, best: str | None) -> None:
    """Remove interrupted saves, and checkpoints above --save_total_limit except `best`. Collective."""
    folder, args = run.folder, run.args
    agreement = AllOrNone(f"removing what saves left in {folder}")
    agreement.attempt_if(writes_small_files(args), lambda: recover(folder))
    agreement.settle(None)
    if args.save_total_limit and best is not None and _had_limit(folder, args.save_total_limit):
        rotate_what_is_left(args, folder, [best, source_checkpoint(run.model, folder)])


def _had_limit(folder: Path, limit: int) -> bool:
    """True if the finished run had the same `limit`. A new limit must remove no checkpoint of that run."""
    try:
        return bool(read_json_object(folder / "training_args.json").get("save_total_limit") == limit)
    except (ValueError, OSError):
        return False


def check_no_other_model(run: AskedRun) -> None:
    """Raise ValueError if `output_dir` holds the finished model of another run. Collective.

    Called for a run that does not resume there, and so would replace that model at its end.
    """
    if run.args.overwrite_output_dir or run.args.no_resume:
        return
    folder = run.folder
    record = on_rank0(f"looking for a finished model in {folder}", lambda: _record_of_another(run))
    if record is None:
        return
    raise ValueError(
        f"{folder}: the model of a run that ended there at step {record['step']} would be replaced, and "
        "there is no checkpoint to go on from; choose another --output_dir, or --overwrite_output_dir True"
    )


def check_not_ended(run: AskedRun) -> None:
    """Raise ValueError if a run with other arguments ended in `output_dir` and no steps are left. Collective.

    A resume from that run's checkpoint would train nothing, and save the new arguments with old weights.
    """
    folder = run.folder
    difference = on_rank0(f"looking for the end of a run in {folder}", lambda: _difference_of_end(run))
    if difference is not None:
        raise ValueError(
            f"{folder}: {difference}, so nothing would be trained; --no_resume True trains again and keeps "
            "the checkpoints aside, or choose another --output_dir"
        )


def _difference_of_end(run: AskedRun) -> str | None:
    record = _read(run.folder / RECORD_NAME)
    if record is None or not run.is_labelled_here or not _has_checkpoints(run.folder):
        return None
    request = run.request()
    if record["step"] < request["planned_steps"] and not record.get("stopped_early", False):
        return None
    for name in TRAINED_BY:
        before, now = record["request"].get(name), request[name]
        if name in record["request"] and before != now:
            return f"a run with --{name} {before} ended here at step {record['step']}, and now it is {now}"
    step, planned = record["step"], request["planned_steps"]
    return f"a run ended here at step {step}, and now {planned} are asked for" if step > planned else None


def record_end(trainer: SavedRun, output: TrainOutput) -> None:
    """Write the record of a finished run into `output_dir` on rank 0. Called after the final save."""
    given = (trainer.tokenizer, trainer.train_dataset, trainer.eval_dataset)
    run = AskedRun(trainer.model, trainer.args, *given)
    if launch().rank != 0 or not run.is_labelled_here:
        return
    folder = run.folder
    if is_kept_apart(folder):
        return  # the files there belong to another run
    try:
        files = _model_files(folder)
    except ValueError:
        return  # a script's own trainer_save_model_safe has saved the model elsewhere
    record = {
        "format_version": _VERSION,
        "step": output.global_step,
        "training_loss": output.training_loss,
        "metrics": output.metrics,
        "stopped_early": trainer.stopped_early,
        "request": run.request(),
        "base_weights": trainer.model.base_weights(),
        "files": {name: _stamp(folder / name) for name in files},
    }
    check_still_held(folder)
    write_output(folder / RECORD_NAME, json.dumps(record, indent=2, sort_keys=True) + "\n")


def forget_end(output_dir: str | Path) -> None:
    """Remove an earlier run's record from `output_dir` on rank 0. Called when a run begins there."""
    path = Path(output_dir) / RECORD_NAME
    if launch().rank != 0 or not os.path.lexists(path):
        return
    is_ours = path.is_symlink() or _read(path) is not None
    removed(path.unlink if is_ours else lambda: archive_foreign(path), path)


def _has_checkpoints(folder: Path) -> bool:
    return bool(_C.list_checkpoints(str(folder), links=True))


def _matching_record(run: AskedRun) -> dict[str, Any] | None:
    folder = run.folder
    record = _read(folder / RECORD_NAME)
    if record is None and os.path.lexists(folder / RECORD_NAME):
        tell(f"{folder / RECORD_NAME} is not as a finished run writes it: the run counts as not finished")
    if record is None or not _has_checkpoints(folder):
        return None
    request = run.request()
    hashes = (request["data_hash"], *request.get(EVAL_DATA, {}).values())
    if None in hashes:  # without a hash, the data cannot be compared
        return None
    is_cut = record["step"] < request["planned_steps"] and not record.get("stopped_early", False)
    if record["request"] != request or is_cut:
        return None
    if _has_other_base(record.get("base_weights"), run.model.base_weights()):
        return None
    return {**record, "best": _best_checkpoint(folder)} if _are_as_written(folder, record) else None


def _best_checkpoint(folder: Path) -> str | None:
    """Return the best checkpoint's name from trainer_state.json; "" if there is none, None if unknown."""
    try:
        state = TrainerState.load_from_json(folder / "trainer_state.json")
    except (ValueError, OSError, TypeError):
        return None
    return Path(state.best_model_checkpoint or "").name


def _record_of_another(run: AskedRun) -> dict[str, Any] | None:
    """Return the record of another run whose model is in `folder`; None if there is no such model."""
    record = _read(run.folder / RECORD_NAME)
    weights = [name for name in (record or {}).get("files", ()) if name.endswith(".safetensors")]
    if record is None or not any((run.folder / name).is_file() for name in weights):
        return None
    return None if run.is_labelled_here and record["request"] == run.request() else record


def _has_other_base(old: object, new: str | None) -> bool:
    """True if both digests are known, and show that the frozen weights differ."""
    return isinstance(old, str) and new is not None and is_comparable(old, new) and old != new


def _are_as_written(folder: Path, record: dict[str, Any]) -> bool:
    files: dict[str, object] = record["files"]
    return all(_stamp(folder / name) == stamp for name, stamp in files.items())


def _tell_parent(folder: Path, record: dict[str, Any]) -> None:
    """Send the finished run's logs to the parent program, if it reads progress events."""
    events = ProgressEvents.of(os.environ) if launch().rank == 0 else None
    if events is None:
        return
    try:
        history = TrainerState.load_from_json(folder / "trainer_state.json").log_history
    except (ValueError, OSError, TypeError):
        history = [{**record["metrics"], "step": record["step"]}]
    status = Status(step=record["step"], max_steps=record["step"])
    events.begin(status, Run(str(folder), history))


def _read(path: Path) -> dict[str, Any] | None:
    """Return the record in `path`; None if there is none, or if its types differ from `record_end`'s."""
    try:
        record: dict[str, Any] = read_json(path)
    except ValueError:
        return None
    if misfit(record, _RECORD, str(path)) is not None or record["format_version"] != _VERSION:
        return None
    stamps, metrics = record["files"].values(), record["metrics"].values()
    fits = all(misfit(stamp, ListOf(Count), "") is None for stamp in stamps)
    return record if fits and all(misfit(value, Number, "") is None for value in metrics) else None


def _adapters(model: CausalLM) -> dict[str, Any]:
    facts = model.adapter_facts()
    return {} if facts is None else {"adapters": facts, "adapters_begin": model.initial_digest()}


def _model_files(folder: Path) -> list[str]:
    adapter = [name for name in _OF_ADAPTERS if (folder / name).is_file()]
    names = adapter or [Path(path).name for path in _C.weight_files(str(folder))]
    names += ["config.json", "generation_config.json"]
    names += [path.name for path in folder.iterdir() if path.is_file() and is_tokenizer_file(path.name)]
    names += [path.relative_to(folder).as_posix() for path in folder.glob(f"{TEMPLATES}/*.jinja")]
    return sorted({name for name in names if (folder / name).is_file()})


def _stamp(path: Path) -> list[int] | None:
    """Return a file's size [bytes] and modification time [microseconds]; None if the file is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns // 1000]
