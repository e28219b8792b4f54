"""The best evaluation of a run and its checkpoint (docs/spec/trainer_semantics.md, section 16.4)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.arguments import TrainingArguments
from fastsft.callbacks.state import TrainerState
from fastsft.checkpoint.content import keep_only, source_checkpoint
from fastsft.checkpoint.load import first_existing, load_model_alone, load_trained_weights
from fastsft.runtime.messages import tell
from fastsft.trainer.evaluation_notices import decides
from fastsft.trainer.schedule import metric_key

if TYPE_CHECKING:
    from fastsft.trainer.running import Running


_NO_BEST = "--load_best_model_at_end: no evaluation had a finite metric to choose the best weights by"


def is_better(args: TrainingArguments, value: float, best: float) -> bool:
    """True if `value` is strictly better in the direction of `greater_is_better`; never for NaN."""
    return value > best if args.greater_is_better else value < best


class BestModel:
    """Follows `metric_for_best_model` in the state of `trainer`, which names the best step and checkpoint."""

    def __init__(self, trainer: Running) -> None:
        self._trainer = trainer
        self._saved_steps: set[int] = set()
        self._named: list[Path] = []  # the best checkpoints so far, in their order
        self._loaded: Path | None = None  # whose weights the engine has, until `remove_others`
        self.keeps_last = False  # after `load`: the weights are those of the last step for want of the best

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
        better = decides(args, metrics, state.global_step) and is_better(
            args, metrics[name], state.best_metric
        )
        if better:
            state.best_metric = metrics[name]
            if args.save_strategy != "no":
                state.best_global_step = state.global_step
        if args.save_strategy == "best":
            self._trainer.control.should_save = better

    def saving(self, step: int) -> None:
        """A checkpoint of `step` is about to be written: its state names the best one, which may be it."""
        self._saved_steps.add(step)
        self._name_best()

    def failed(self, directory: Path) -> None:
        """That checkpoint could not be written: the best one is again the one before it."""
        self._saved_steps = {step for step in self._saved_steps if f"checkpoint-{step}" != directory.name}
        self._named = [path for path in self._named if path.name != directory.name]
        if Path(self._state.best_model_checkpoint or "").name == directory.name:
            self._state.best_model_checkpoint = str(self._named[-1]) if self._named else None

    def _name_best(self) -> None:
        state = self._state
        if state.best_global_step not in self._saved_steps:
            return
        path = self._directory / f"checkpoint-{state.best_global_step}"
        before = Path(state.best_model_checkpoint) if state.best_model_checkpoint else None
        for named in (before, path):
            if named is not None and named not in self._named[-1:]:
                self._named.append(named)
        state.best_model_checkpoint = str(path)

    def load(self) -> None:
        """After the last step: the weights of the best checkpoint, with `--load_best_model_at_end`.

        Collective. With --save_total_limit 1 the other checkpoints of fastsft go, as in transformers; what
        other programs wrote stays. The best checkpoint is the newest that was the best when it was written:
        where a better one could not be written (--on_save_error continue), a line says so. Where it is
        missing or damaged, too, and the weights of the last step stay (`keeps_last`); where its training
        state alone is damaged, its model is loaded, and the other checkpoints stay.
        """
        best = self._state.best_model_checkpoint
        if not self._args.load_best_model_at_end:
            return
        if best is None and self._state.best_global_step is None:
            line: str | None = f"{_NO_BEST}: the weights of the last step stay"
        else:
            line = self._load(best)
        self.keeps_last = line is not None
        if line is not None:
            tell(line)

    def _load(self, best: str | None) -> str | None:
        """A line about why its weights are not loaded, or None; collective."""
        if best is None:
            return "there is no checkpoint of the best step: the weights of the last step stay"
        found = first_existing(best, self._directory / Path(best).name)
        if found is None:
            return f"the best checkpoint, {best}, is not there: the weights of the last step stay"
        path = Path(found)
        if (problem := load_trained_weights(self._trainer, path)) is None:
            tell(f"loaded the best weights: {path}, {self._standing(path)}")
            self._loaded = path
        elif load_model_alone(self._trainer, path):
            tell(f"{problem}\n  loaded the best weights from its model files: {path}, {self._standing(path)}")
        else:
            return f"the best weights are not loaded, and those of the last step stay: {problem}"
        return None

    def remove_others(self) -> bool:
        """With `--save_total_limit 1`, once the best weights are loaded: the other checkpoints go.

        True the first time where there may be some; collective.
        """
        loaded, self._loaded = self._loaded, None
        if loaded is None or self._args.save_total_limit != 1 or not self._is_own(loaded):
            return False
        keep_only(loaded, source_checkpoint(self._trainer.model, self._directory))
        return True

    def resumed(self, checkpoint: str) -> None:
        """The state of `checkpoint` is the run's: where the best one that it names is now; collective.

        Next to it, as when both were copied or renamed (previous-<UTC time>-), or else where it was.
        """
        best = self._state.best_model_checkpoint
        if best is not None:
            prefix = Path(checkpoint).name.rpartition("checkpoint-")[0]
            neighbour = Path(checkpoint).parent / (prefix + Path(best).name)
            self._state.best_model_checkpoint = first_existing(neighbour, best) or best

    def _is_own(self, checkpoint: Path) -> bool:
        """True if it is the run's: not of another one that it goes on from, and not one put aside."""
        inside = checkpoint.parent.resolve() == self._directory.resolve()
        return inside and checkpoint.name.startswith("checkpoint-")

    def _standing(self, path: Path) -> str:
        """The metric of a checkpoint that holds the best weights, or why it is not the best step."""
        state = self._state
        if path.name.rpartition("-")[-1] != str(state.best_global_step):
            return f"the best that could be saved: step {state.best_global_step} was better"
        key = metric_key(self._args.metric_for_best_model or "loss")
        return f"{key} {state.best_metric:g}"

    @property
    def _args(self) -> TrainingArguments:
        return self._trainer.args

    @property
    def _state(self) -> TrainerState:
        return self._trainer.state

    @property
    def _directory(self) -> Path:
        return Path(self._args.output_dir or ".")
