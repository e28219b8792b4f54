"""Checkpoints of a run, the best model, and the work that was pending when a checkpoint was saved.

Sources: docs/spec/trainer_semantics.md, sections 16.4 and 17, and docs/spec/reliability.md, section 3.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.arguments import TrainingArguments
from fastsft.callbacks.state import TrainerState
from fastsft.checkpoint.content import keep_only, source_checkpoint
from fastsft.checkpoint.load import first_existing, load_model_alone, load_trained_weights
from fastsft.checkpoint.saver import CheckpointSaver
from fastsft.ranks.exchange import on_any_rank
from fastsft.runtime.messages import tell
from fastsft.runtime.timeouts import deadline
from fastsft.trainer.evaluation import decides
from fastsft.trainer.events import Events, handles_on_save
from fastsft.trainer.schedule import metric_key

if TYPE_CHECKING:
    from fastsft.checkpoint.saved_run import SavedRun
    from fastsft.reporting.progress import Progress


class Checkpoints:
    """The checkpoints of `run`: saves `checkpoint-<step>`, and notifies callbacks and `BestModel`."""

    def __init__(
        self, run: SavedRun, events: Events, progress: Progress, keep_paths: Callable[[], None]
    ) -> None:
        """keep_paths: makes relative paths absolute after a script has called os.chdir."""
        self._run, self._events, self._progress, self._keep_paths = run, events, progress, keep_paths
        self.best = BestModel(run, events)
        self.saver = CheckpointSaver(run)

    def save(self) -> Path:
        """Save `checkpoint-<step>` into `output_dir`, once per step; return its directory. Collective.

        The files are written while training goes on; `saver.wait()` waits for them (checkpoint/saver.py). If
        a callback on any rank handles `on_save`, the files are complete before that event. If the checkpoint
        could not be written and --on_save_error lets the run go on, `on_save` is not fired.
        """
        self._keep_paths()
        run, path = self._run, self.path()
        if run.model.load_weights_before_save("Trainer.save_checkpoint"):
            self.saver.remember(None)  # an earlier checkpoint of this step has the old weights
        self.best.saving(run.state.global_step)
        if self.saver.has(path):
            return path
        run.state.stateful_callbacks = self._events.states()
        with deadline(run.args, "save"), self._progress.pace.phase("waiting"):
            self.saver.wait_before(path)  # the previous save is no part of this checkpoint's phase "saving"
        with deadline(run.args, "save"), self._progress.phase("saving", path.name):
            self.saver.save(path)
            if on_any_rank(any(handles_on_save(callback) for callback in self._events.callbacks)):
                self.saver.wait()  # the callback may read the checkpoint, or add files to it
            if self.saver.has(path):
                self._events.fire("on_save")
            else:
                self._events.control.should_save = False  # on_save, which resets it, was not fired
        return path

    def path(self) -> Path:
        """Return the directory of the current step's checkpoint."""
        return Path(self._run.args.output_dir or ".") / f"checkpoint-{self._run.state.global_step}"

    def resumed(self, checkpoint: str) -> None:
        """Note that the run has resumed from `checkpoint`, which need not be saved again. Collective."""
        self.best.resumed(checkpoint)
        path = self.path()
        self.best.saving(self._run.state.global_step)
        self.saver.remember(path if Path(checkpoint).resolve() == path.resolve() else None)


@dataclass
class PendingWork:
    """Work that a signal interrupted. It is stored in fastsft_state.json, and a resumed run does it first.

    evaluate: True if the evaluation at this step is pending. save: True if a checkpoint follows the pending
    evaluation. epoch_end: True if the work at an epoch's end is pending, provided that this step ends an
    epoch. stop: True if a callback had stopped the run. log_entries: number of log entries before the
    interrupted evaluation; later entries, of data sets that it had finished, are dropped. None keeps all.
    """

    evaluate: bool = False
    save: bool = False
    epoch_end: bool = False
    stop: bool = False
    log_entries: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entry `due` of fastsft_state.json."""
        return dataclasses.asdict(self)

    def restore(self, saved: dict[str, Any] | None) -> None:
        """Restore the entry `due` of fastsft_state.json. None, as in older files, means no pending work."""
        vars(self).update(vars(PendingWork(**(saved or {}))))

    def clear(self) -> None:
        """Note that nothing is pending, when the work at the end of an epoch begins."""
        self.restore(None)

    def step_done(self) -> None:
        """Note that a step is done. If it ends an epoch, the work at the epoch's end is now pending."""
        self.restore({"epoch_end": True})

    def begin_evaluation(self, save: bool, log_entries: int) -> None:
        """Note that an evaluation begins. Its results count only after `end_evaluation`.

        save: True if a checkpoint follows. log_entries: number of log entries before the evaluation.
        """
        self.evaluate, self.save, self.log_entries = True, save, log_entries

    def end_evaluation(self) -> None:
        """Note that the evaluation is done, so that its results count."""
        self.evaluate, self.save, self.log_entries = False, False, None


_NO_BEST = "--load_best_model_at_end: no evaluation had a finite metric to choose the best weights by"


def is_better(args: TrainingArguments, value: float, best: float) -> bool:
    """True if `value` is strictly better than `best`, in the direction of `greater_is_better`.

    False if either is NaN.
    """
    return value > best if args.greater_is_better else value < best


class BestModel:
    """The best step by `metric_for_best_model`, and its checkpoint. Both are kept in the state of `run`.

    keeps_last: True after `load` if the best weights could not be loaded, so that the model keeps the weights
    of the last step.
    """

    def __init__(self, run: SavedRun, events: Events) -> None:
        self._run, self._events = run, events
        self._saved_steps: set[int] = set()
        self._named: list[Path] = []  # all checkpoints that have been the best so far, oldest first
        self._loaded: Path | None = None  # checkpoint loaded by `load`; None again after `remove_others`
        self.keeps_last = False

    def compare(self, metrics: dict[str, float]) -> None:
        """Compare an evaluation's metric with the best value so far, and keep the better value.

        With `--save_strategy best`, request a checkpoint if the metric is better. ValueError if `metrics`
        lack metric_for_best_model.
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
            self._events.control.should_save = better

    def saving(self, step: int) -> None:
        """Update the best checkpoint's path in the state, just before a checkpoint of `step` is written."""
        self._saved_steps.add(step)
        self._name_best()

    def failed(self, directory: Path) -> None:
        """Forget the checkpoint `directory`, which could not be written.

        If it was the best checkpoint, the previous best checkpoint takes its place.
        """
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
        """Load the weights of the best checkpoint if --load_best_model_at_end asks for them. Collective.

        The best checkpoint is the newest checkpoint that was the best when it was written. If a better step
        could not be saved (--on_save_error continue), a message says so. If the checkpoint is missing or
        damaged, a message is printed and the weights of the last step stay (`keeps_last`). If only the
        checkpoint's training state is damaged, its model files are loaded.
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
        """Load the checkpoint `best`. Collective. Return an error message, or None after success."""
        if best is None:
            return "there is no checkpoint of the best step: the weights of the last step stay"
        found = first_existing(best, self._directory / Path(best).name)
        if found is None:
            return f"the best checkpoint, {best}, is not there: the weights of the last step stay"
        path = Path(found)
        if (problem := load_trained_weights(self._run, path)) is None:
            tell(f"loaded the best weights: {path}, {self._standing(path)}")
            self._loaded = path
        elif load_model_alone(self._run, path):
            tell(f"{problem}\n  loaded the best weights from its model files: {path}, {self._standing(path)}")
        else:
            return f"the best weights are not loaded, and those of the last step stay: {problem}"
        return None

    def remove_others(self) -> bool:
        """Remove all checkpoints except the loaded best checkpoint, if --save_total_limit is 1. Collective.

        Return True if checkpoints may have been removed. Later calls do nothing and return False. Checkpoints
        of other programs stay. All checkpoints stay if the best checkpoint's training state was damaged.
        """
        loaded, self._loaded = self._loaded, None
        if loaded is None or self._args.save_total_limit != 1 or not self._is_own(loaded):
            return False
        keep_only(loaded, source_checkpoint(self._run.model, self._directory))
        return True

    def resumed(self, checkpoint: str) -> None:
        """Update the best checkpoint's path in the state, after a resume from `checkpoint`. Collective.

        Both checkpoints may have been copied or archived together. So the best checkpoint is searched next to
        `checkpoint` first, with the same prefix (previous-<UTC time>-), and then at its old path.
        """
        best = self._state.best_model_checkpoint
        if best is not None:
            prefix = Path(checkpoint).name.rpartition("checkpoint-")[0]
            neighbour = Path(checkpoint).parent / (prefix + Path(best).name)
            self._state.best_model_checkpoint = first_existing(neighbour, best) or best

    def _is_own(self, checkpoint: Path) -> bool:
        """True if `checkpoint` is a checkpoint of this run: in `output_dir` and not archived (previous-*)."""
        inside = checkpoint.parent.resolve() == self._directory.resolve()
        return inside and checkpoint.name.startswith("checkpoint-")

    def _standing(self, path: Path) -> str:
        """Return the loaded checkpoint's metric, or a note that a better step was not saved."""
        state = self._state
        if path.name.rpartition("-")[-1] != str(state.best_global_step):
            return f"the best that could be saved: step {state.best_global_step} was better"
        key = metric_key(self._args.metric_for_best_model or "loss")
        return f"{key} {state.best_metric:g}"

    @property
    def _args(self) -> TrainingArguments:
        return self._run.args

    @property
    def _state(self) -> TrainerState:
        return self._run.state

    @property
    def _directory(self) -> Path:
        return Path(self._args.output_dir or ".")
