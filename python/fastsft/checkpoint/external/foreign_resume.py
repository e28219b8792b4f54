"""The resume from a transformers checkpoint (docs/checkpoint.md)."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastsft import _C
from fastsft.arguments.engine_flags import optimizer_of
from fastsft.checkpoint.external.tensor_files import MOMENTS, OptimizerFile, ShardedFiles, ShardedOptimizer
from fastsft.checkpoint.external.transformers_checkpoint import (
    TransformersCheckpoint,
    load_plain,
    random_state_file,
    read_foreign_states,
)
from fastsft.checkpoint.run_identity import run_position, warn_of_change
from fastsft.checkpoint.saved_run import ForeignStates
from fastsft.checkpoint.state_files import MOST_STATE_BYTES, check_trainer_state
from fastsft.model.weights import pickled_tensors
from fastsft.ranks.exchange import AllOrNone
from fastsft.runtime.messages import tell
from fastsft.runtime.regular_files import read_json_object

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.checkpoint.saved_run import SavedRun
    from fastsft.runtime.random_state import RandomState

WRITER = "transformers"
_SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
_MODEL = "model."  # prefix of weight names in a sharded checkpoint


def check_foreign(trainer: SavedRun, directory: str | Path) -> dict[str, Any]:
    """Return the progress stored in a transformers checkpoint, in the form of fastsft_state.json.

    ValueError if the checkpoint evidently belongs to another run.
    """
    checkpoint = TransformersCheckpoint.of(directory)
    if trainer.model.adapter_facts() is not None:
        raise ValueError(
            f"{directory}: holds a whole model that transformers trained, the run has adapters; resume "
            "without LoRA, or train adapters next to its weights with --model_name_or_path"
        )
    if (kind := optimizer_of(trainer.args)) != "adamw":
        raise ValueError(
            f"{directory}: of transformers' checkpoints only AdamW's state is carried over, and the run has "
            f"{kind}; train from its weights with --model_name_or_path, or resume with --optim adamw_torch "
            "if AdamW wrote it"
        )
    check_trainer_state(checkpoint.directory, WRITER)
    state = read_json_object(checkpoint.directory / "trainer_state.json", MOST_STATE_BYTES)
    _check_progress(trainer, state, directory)
    if state.get("max_steps") != trainer.plan.max_steps:
        warn_of_change(directory, "max_steps", state.get("max_steps"), trainer.plan.max_steps)
    step = state["global_step"]
    return {
        "written_by": WRITER,
        "step": step,
        "epoch": state.get("epoch"),
        "position": run_position(trainer, step),
        "next_learning_rate": _next_rate(checkpoint.scheduler),
        "loss_scale": _loss_scale(trainer.args, checkpoint, step) if trainer.args.fp16 else {},
    }


def is_foreign(saved: dict[str, Any]) -> bool:
    """True if `saved` was returned by `check_foreign`."""
    return saved.get("written_by") == WRITER


def load_foreign(trainer: SavedRun, directory: str | Path, saved: dict[str, Any]) -> None:
    """Restore master weights, moments, step count and random states. Collective.

    Tensors are memory-mapped, or read one at a time, and each rank keeps its shard. Sets
    `saved["optimizer_step"]` and `trainer.foreign_states`. The trainer restores these random states after the
    first rows are read, as transformers does (_load_rng_state). ValueError on all ranks if files do not fit
    the model.
    """
    agreement = AllOrNone(f"resuming from {directory}")
    checkpoint = agreement.attempt(lambda: TransformersCheckpoint.of(directory))
    agreement.settle(None)
    assert checkpoint is not None
    _load_weights(trainer, checkpoint, agreement)
    optimizer = agreement.attempt(lambda: _optimizer(trainer, checkpoint))
    agreement.attempt(lambda: _load_moments(trainer, optimizer, checkpoint.optimizer))
    step = agreement.attempt(lambda: _updates(optimizer))
    states = agreement.attempt(lambda: _random_states(checkpoint, agreement))
    agreement.settle(None)
    assert step is not None and optimizer is not None
    trainer.engine.step_count = saved["optimizer_step"] = step
    trainer.foreign_states = ForeignStates(states)
    for name, value in optimizer.settings.items():
        if value != (current := getattr(trainer.args, name)):
            warn_of_change(directory, name, value, current)
    tell(_summary(trainer, checkpoint, states is not None))


def _check_progress(trainer: SavedRun, state: dict[str, Any], directory: str | Path) -> None:
    """Raise ValueError if the saved epoch and step show that epochs had another step count."""
    saved, step, plan = state.get("epoch"), state["global_step"], trainer.plan
    if saved is None:
        return
    epoch, within = divmod(step, plan.steps_per_epoch)
    done = min(within * trainer.args.gradient_accumulation_steps, plan.micro_batches)
    expected = epoch + done / plan.micro_batches
    if abs(expected - saved) > 0.5 / plan.micro_batches:
        raise ValueError(
            f"{directory}: after step {step} the run was in epoch {saved:.6g}, with these data and this "
            f"batch it would be in epoch {expected:.6g}; resume with the data and the batch of its begin"
        )


def _loss_scale(args: TrainingArguments, checkpoint: TransformersCheckpoint, step: int) -> dict[str, Any]:
    """Return the loss scale of scaler.pt in the form for LossScale.restore; {} without the file."""
    if checkpoint.scaler is None:
        return {}
    content = load_plain(checkpoint.scaler, "the state of a loss scale")
    kept = {name: content.get(name) for name in _SCALER} if isinstance(content, dict) else {}
    if not kept or not all(isinstance(value, int | float) and value >= 0 for value in kept.values()):
        raise ValueError(
            f"{checkpoint.scaler}: expected {', '.join(_SCALER)} as numbers, got {reprlib.repr(content)}"
        )
    factors = (kept["growth_factor"], kept["backoff_factor"])
    if kept["growth_interval"] != (window := args.loss_scale_window):
        warn_of_change(checkpoint.directory, "loss_scale_window", kept["growth_interval"], window)
    if factors != (2.0, 0.5):
        raise ValueError(
            f"{checkpoint.scaler}: the scale grows by {factors[0]} and falls by {factors[1]}, expected 2.0 "
            "and 0.5, which are fastsft's"
        )
    schedule = load_plain(checkpoint.scheduler, "the state of a schedule") if checkpoint.scheduler else {}
    done = schedule.get("last_epoch") if isinstance(schedule, dict) else None
    return {
        "scale": kept["scale"],
        "good_steps": kept["_growth_tracker"],
        "schedule_lag": max(0, step - done) if isinstance(done, int) else 0,
    }


def _next_rate(path: Path | None) -> float | None:
    """Return the next step's learning rate from scheduler.pt; None if the file or the rate is missing."""
    if path is None:
        return None
    content = load_plain(path, "the state of a schedule")
    rates = content.get("_last_lr") if isinstance(content, dict) else None
    first = rates[0] if isinstance(rates, list | tuple) and rates else None
    try:
        return float(first) if isinstance(first, int | float) else None
    except OverflowError:
        return None


def _load_weights(trainer: SavedRun, checkpoint: TransformersCheckpoint, agreement: AllOrNone) -> None:
    engine, weights = trainer.engine, checkpoint.weights
    if weights is None:
        trainer.model.load_checkpoint_weights(engine, str(checkpoint.directory))
        return

    def fill() -> None:
        loader = _C.WeightLoader(engine)
        names = [name for name, _ in trainer.model.trained_order(engine)]
        for name, tensor in _fsdp_weights(weights, names):
            for stored, part in trainer.model.stored_parts(name, tensor.detach().contiguous()):
                loader.set(stored, part, str(weights))
        loader.finish(str(weights))

    agreement.attempt(fill)
    agreement.settle(None)
    _C.publish_weights(engine)


def _fsdp_weights(path: Path, names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) for each of `names`, the engine's tensors.

    The files list tied tensors under further names, which are skipped.
    """
    if path.is_dir():
        files = ShardedFiles(path)
        yield from ((name, files.tensor(_MODEL + name)) for name in names)
        return
    wanted = set(names)
    yield from ((name, tensor) for name, tensor in pickled_tensors(path) if name in wanted)


_Optimizer = OptimizerFile | ShardedOptimizer


def _optimizer(trainer: SavedRun, checkpoint: TransformersCheckpoint) -> _Optimizer:
    order = trainer.model.trained_order(trainer.engine)
    if checkpoint.optimizer.is_dir():
        return ShardedOptimizer(checkpoint.optimizer, [name for name, _ in order])
    return OptimizerFile(checkpoint.optimizer, order)


def _load_moments(trainer: SavedRun, optimizer: _Optimizer | None, path: Path) -> None:
    assert optimizer is not None
    for moment in MOMENTS:
        loader = _C.WeightLoader(trainer.engine, moment)
        for name, tensor in optimizer.tensors(moment):
            for stored, part in trainer.model.stored_parts(name, tensor.detach().contiguous()):
                loader.set(stored, part, f"{path}: {moment}")
        loader.finish(f"{path}: {moment}")


def _updates(optimizer: _Optimizer | None) -> int:
    assert optimizer is not None
    return optimizer.step()


def _random_states(checkpoint: TransformersCheckpoint, agreement: AllOrNone) -> RandomState | None:
    path = random_state_file(checkpoint.directory, agreement.rank, agreement.world_size)
    return None if path is None else read_foreign_states(path)


def _summary(trainer: SavedRun, checkpoint: TransformersCheckpoint, with_states: bool) -> str:
    """Return a message about state that cannot be restored from a transformers checkpoint."""
    is_missing: dict[str, Callable[[], bool]] = {
        "random states (none for this number of ranks)": lambda: not with_states,
        "masks of dropout (fastsft draws its own)": lambda: _drops(trainer.model.config),
        "the loss scale of fp16": lambda: checkpoint.scaler is not None and not trainer.args.fp16,
        "losses since the last log": lambda: True,
    }
    missing = [what for what, is_so in is_missing.items() if is_so()]
    return (
        f"{checkpoint.directory} was written by transformers: not carried over are {', '.join(missing)}; "
        "seed, data, tokenizer and labels are not in it, and have to be those of its begin"
    )


def _drops(config: Mapping[str, object]) -> bool:
    rates = [value for key, value in dict(config).items() if "dropout" in key or "pdrop" in key]
    return any(isinstance(rate, int | float) and rate > 0 for rate in rates)
