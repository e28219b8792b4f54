"""The best evaluation of a run and its checkpoint (trainer_semantics.md, section 16.4)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from fastsft.arguments import TrainingArguments
from fastsft.notices import tell
from fastsft.schedule import metric_key
from fastsft.state import TrainerState


def is_better(args: TrainingArguments, value: float, best: float) -> bool:
    """Whether `value` is strictly better in the direction of `greater_is_better`; never for NaN."""
    return value > best if args.greater_is_better else value < best


class BestModel:
    """Follows `metric_for_best_model` in the state of `trainer`, which names the best step and checkpoint."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._saved_steps: set[int] = set()

    def take(self, metrics: dict[str, float]) -> None:
        """Compare an evaluation; with `--save_strategy best` a checkpoint follows when it is the best so far.

        ValueError when `metrics` lack metric_for_best_model.
        """
        args, state = self._args, self._state
        if args.metric_for_best_model is None:
            return
        name = metric_key(args.metric_for_best_model)
        if name not in metrics:
            raise ValueError(
                f"--metric_for_best_model {args.metric_for_best_model}: the evaluation has no {name}; "
                f"choose one of {', '.join(sorted(metrics))}"
            )
        if state.best_metric is None:
            state.best_metric = -math.inf if args.greater_is_better else math.inf
        better = is_better(args, metrics[name], state.best_metric)
        if better:
            state.best_metric = metrics[name]
            if args.save_strategy != "no":
                state.best_global_step = state.global_step
        if args.save_strategy == "best":
            self._trainer.control.should_save = better

    def saving(self, step: int) -> None:
        """A checkpoint of `step` is about to be written: its state names the best one, which may be it."""
        self._saved_steps.add(step)
        best = self._state.best_global_step
        if best in self._saved_steps:
            self._state.best_model_checkpoint = str(self._directory / f"checkpoint-{best}")

    def load(self) -> None:
        """After the last step: the weights of the best checkpoint, with `--load_best_model_at_end`.

        Collective. With --save_total_limit 1 the other checkpoints go, as in transformers. Where the
        checkpoint could not be written (--on_save_error continue), the last weights stay, and a line says so.
        ValueError when it does not verify.
        """
        from fastsft import saving

        best = self._state.best_model_checkpoint
        if not self._args.load_best_model_at_end or best is None:
            return
        path = self._directory / Path(best).name
        if not saving.checkpoint_exists(path):
            tell(f"the best checkpoint, {path}, is not there: the weights of the last step stay")
            return
        saving.load_trained_weights(self._trainer, path)
        key = metric_key(self._args.metric_for_best_model or "loss")
        tell(f"loaded the best weights: {path}, {key} {self._state.best_metric:g}")
        if self._args.save_total_limit == 1:
            saving.keep_only(path)

    @property
    def _args(self) -> TrainingArguments:
        return self._trainer.args  # type: ignore[no-any-return]

    @property
    def _state(self) -> TrainerState:
        return self._trainer.state  # type: ignore[no-any-return]

    @property
    def _directory(self) -> Path:
        return Path(self._args.output_dir or ".")
