"""A run that is over: started again, it returns at once (trainer_semantics.md, section 17)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastsft.checkpoints.run_identity import describe_request
from fastsft.dataset.token_rows import TokenRows
from fastsft.launcher import launch
from fastsft.notices import tell
from fastsft.planning.run_plan import RunPlan
from fastsft.ranks.agreement import Agreement
from fastsft.training.state import TrainOutput

RECORD_NAME = "fastsft_finished.json"
_VERSION = 1


def finished_output(model: Any, args: Any, tokenizer: Any, train_dataset: Any) -> TrainOutput | None:
    """What the same run gave when it finished in `output_dir`, with a line that says so; collective.

    None unless the record of its end is there with a checkpoint, names this run (data, arguments that count
    when resuming, source of the model, how weights are saved), and all files of the model that it left are
    there as it wrote them. Then the run is resumed or begun as usual, which leads to the same result.
    """
    folder = Path(args.output_dir or ".")
    agreement = Agreement(f"looking for a finished run in {folder}")
    found = agreement.attempt_on_first(
        lambda: json.dumps(_matching_record(folder, model, args, tokenizer, train_dataset))
    )
    record = json.loads(agreement.settle_first(found))
    if record is None:
        return None
    step = record["step"]
    tell(
        f"{folder}: this run is finished: step {step} of {step}; nothing is trained or written, and "
        "--no_resume True trains it again"
    )
    return TrainOutput(step, record["training_loss"], record["metrics"])


def record_end(trainer: Any, output: TrainOutput) -> None:
    """After the final save: note in `output_dir` that the run is over, and what it left; on rank 0."""
    from fastsft import _C

    if launch().rank != 0:
        return
    folder = Path(trainer.args.output_dir or ".")
    request = _request(trainer.model, trainer.args, trainer.tokenizer, trainer.train_dataset)
    record = {
        "format_version": _VERSION,
        "step": output.global_step,
        "training_loss": output.training_loss,
        "metrics": output.metrics,
        "request": request,
        "files": {name: _stamp(folder / name) for name in _model_files(folder)},
    }
    _C.replace_file(str(folder / RECORD_NAME), json.dumps(record, indent=2, sort_keys=True) + "\n")


def forget_end(output_dir: str | Path) -> None:
    """A run begins in `output_dir`: what an earlier one left there is no longer the last word; on rank 0."""
    if launch().rank == 0:
        (Path(output_dir) / RECORD_NAME).unlink(missing_ok=True)


def _matching_record(
    folder: Path, model: Any, args: Any, tokenizer: Any, train_dataset: Any
) -> dict[str, Any] | None:
    from fastsft import _C

    record = _read(folder / RECORD_NAME)
    if record is None or not _C.list_checkpoints(str(folder)):
        return None
    request = json.loads(json.dumps(_request(model, args, tokenizer, train_dataset)))
    if request["data_hash"] is None:  # whether its data are the same cannot be known
        return None
    if record["request"] != request or record["step"] < request["planned_steps"]:
        return None
    files: dict[str, Any] = record["files"]
    return record if all(_stamp(folder / name) == stamp for name, stamp in files.items()) else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    known = isinstance(record, dict) and record.get("format_version") == _VERSION
    return record if known else None


def _request(model: Any, args: Any, tokenizer: Any, train_dataset: Any) -> dict[str, Any]:
    rows = TokenRows.of(train_dataset, args.model_max_length)
    return {
        **describe_request(args, tokenizer, train_dataset, rows),
        "planned_steps": RunPlan.of(args, len(rows)).max_steps,
        "model": str(Path(model.source_directory).resolve()),
        **{name: getattr(args, name) for name in ("save_dtype", "max_shard_size", "load_best_model_at_end")},
    }


def _model_files(folder: Path) -> list[str]:
    from fastsft import _C

    return [*(Path(path).name for path in _C.weight_files(str(folder))), "config.json"]


def _stamp(path: Path) -> list[int] | None:
    """Size and time of change of a file; None when it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]
