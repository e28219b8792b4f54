"""A callback that ends a run when evaluations stop improving, like transformers' EarlyStoppingCallback."""

from __future__ import annotations

from fastsft.arguments import TrainingArguments
from fastsft.callbacks.callback import TrainerCallback, TrainerControl
from fastsft.callbacks.state import TrainerState
from fastsft.runtime.given_types import explained_call
from fastsft.runtime.messages import tell, warn_once
from fastsft.trainer.checkpoints import is_better
from fastsft.trainer.evaluation import decides
from fastsft.trainer.schedule import metric_key


class EarlyStoppingCallback(TrainerCallback):
    """A callback that stops training after `early_stopping_patience` evaluations without improvement.

    The evaluations are counted in a row; the default patience is 1. early_stopping_threshold: the least
    difference between a metric and the best metric that counts as an improvement (default 0.0). ValueError at
    the start of training without --metric_for_best_model or --eval_strategy. is_of_run: True for the callback
    of --early_stopping_patience, whose count and reason survive a resume. counts: False while evaluations do
    not count: those outside a run's training, and that of --eval_on_start after a resume, which has the
    checkpoint's own weights. reason: why the run was stopped, or "".
    """

    is_of_run = False
    counts = True
    reason = ""

    @explained_call
    def __init__(
        self, early_stopping_patience: int = 1, early_stopping_threshold: float | None = 0.0
    ) -> None:
        if not isinstance(early_stopping_patience, int):
            raise TypeError(
                "early_stopping_patience: expected a number of evaluations, such as 3, got "
                f"{early_stopping_patience!r}"
            )
        if not isinstance(early_stopping_threshold, int | float | None):
            raise TypeError(
                "early_stopping_threshold: expected a number, such as 0.001, got "
                f"{early_stopping_threshold!r}"
            )
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold or 0.0
        self.early_stopping_patience_counter = 0

    @classmethod
    def of_flags(cls, args: TrainingArguments) -> list[EarlyStoppingCallback]:
        """Return the callback of --early_stopping_patience; an empty list without this flag."""
        if args.early_stopping_patience is None:
            return []
        made = cls(args.early_stopping_patience, args.early_stopping_threshold)
        made.is_of_run, made.counts = True, False
        return [made]

    @property
    def has_stopped(self) -> bool:
        """True if the patience has run out."""
        return self.early_stopping_patience_counter >= self.early_stopping_patience

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Raise ValueError unless the arguments name a metric and an evaluation strategy."""
        self.counts = True
        if self.is_of_run and not state.global_step:
            self.early_stopping_patience_counter = 0
        if self.is_of_run and not self.has_stopped:
            self.reason = ""  # of a checkpoint whose patience was smaller
        if args.metric_for_best_model is None:
            raise ValueError("EarlyStoppingCallback needs a metric: give --metric_for_best_model loss")
        if args.eval_strategy == "no":
            raise ValueError("EarlyStoppingCallback needs evaluations: give --eval_strategy steps or epoch")
        if not args.load_best_model_at_end:
            name = "--early_stopping_patience" if self.is_of_run else "EarlyStoppingCallback"
            warn_once(f"{name} without --load_best_model_at_end: the run keeps its last weights")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Leave later evaluations of the flag's callback uncounted; a script's callback counts on."""
        self.counts = not self.is_of_run

    on_train_stopped = on_train_end

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **_: object,
    ) -> None:
        """Count evaluations in a row that do not improve `state.best_metric`; stop when patience runs out."""
        if not self.counts:
            return
        name = metric_key(args.metric_for_best_model or "loss")
        value = (metrics or {}).get(name)
        if value is None:
            warn_once(f"EarlyStoppingCallback: the evaluation has no {name}; it does not count")
            return
        if not decides(args, metrics or {}, state.global_step):
            return
        best = state.best_metric
        if best is None or (
            is_better(args, value, best) and abs(value - best) > self.early_stopping_threshold
        ):
            self.early_stopping_patience_counter = 0
        else:
            self.early_stopping_patience_counter += 1
        if self.has_stopped:
            control.should_training_stop = True
            self.reason = (
                f"{name} {value:g} at step {state.global_step:,} is the evaluation number "
                f"{self.early_stopping_patience_counter} in a row that is not better than {best:g}"
            )
            tell(f"{self.reason}: stopping")

    def state(self) -> dict[str, object]:
        """Return this callback's entry of `stateful_callbacks` in trainer_state.json."""
        attributes: dict[str, object] = {
            "early_stopping_patience_counter": self.early_stopping_patience_counter
        }
        return {
            "args": {
                "early_stopping_patience": self.early_stopping_patience,
                "early_stopping_threshold": self.early_stopping_threshold,
            },
            "attributes": attributes | ({"reason": self.reason} if self.is_of_run else {}),
        }
