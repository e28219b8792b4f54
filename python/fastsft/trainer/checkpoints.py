"""Checkpoints of a run, its best model, and the work that was pending when a checkpoint was saved.

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
    """Saves the `checkpoint-<step>` directories of `run`, and tells callbacks and `BestModel` of each."""

    def __init__(
        self, run: SavedRun, events: Events, progress: Progress, keep_paths: Callable[[], None]
    ) -> None:
        """keep_paths: makes relative paths absolute after a script has called os.chdir."""
        self._run, self._events, self._progress, self._keep_paths = run, events, progress, keep_paths
        self.best = BestModel(run, events)
        self.saver = CheckpointSaver(run)

    def save(self) -> Path:
        """Save `checkpoint-<step>` into `output_dir`, once a step; return its directory. Collective.

        The files are written while training goes on; `saver.wait()` waits for them (checkpoint/saver.py). If
        a callback of any rank has code for `on_save`, they are complete before that event. `on_save` is not
        called if the checkpoint could not be written and --on_save_error lets the run go on.
        """
        self._keep_paths()
        run, path = self._run, self.path()
        if run.model.load_weights_before_save("Trainer.save_checkpoint"):
            self.saver.remember(None)  # a checkpoint of this step has the weights before the change
        self.best.saving(run.state.global_step)
        if self.saver.has(path):
            return path
        run.state.stateful_callbacks = self._events.states()
        with deadline(run.args, "save"), self._progress.pace.phase("waiting"):
            self.saver.wait_before(path)  # outside of the phase "saving", which begins with this checkpoint
        with deadline(run.args, "save"), self._progress.phase("saving", path.name):
            self.saver.save(path)
            if on_any_rank(any(handles_on_save(callback) for callback in self._events.callbacks)):
                self.saver.wait()  # the callback may read the checkpoint, or put files of its own there
            if self.saver.has(path):
                self._events.fire("on_save")
            else:
                self._events.control.should_save = False  # as on_save would, so that the save is not repeated
        return path

    def path(self) -> Path:
        """Return the directory that `save` would save to now."""
        return Path(self._run.args.output_dir or ".") / f"checkpoint-{self._run.state.global_step}"

    def resumed(self, checkpoint: str) -> None:
        """Note that the run has the state of `checkpoint`, so that it is not saved again. Collective."""
        self.best.resumed(checkpoint)
        path = self.path()
        self.best.saving(self._run.state.global_step)
        self.saver.remember(path if Path(checkpoint).resolve() == path.resolve() else None)


@dataclass
class PendingWork:
    """Work that a signal interrupted. It is stored in fastsft_state.json, and a resumed run does it first.

    evaluate: this step still has to be evaluated. save: a checkpoint has to be saved after that. epoch_end:
    the work at the end of the epoch is pending, if this step ends one. stop: a callback had stopped the run.
    log_entries: number of log entries to keep, those before the interrupted evaluation, which may have logged
    some of its data sets; None keeps all.
    """

    evaluate: bool = False
    save: bool = False
    epoch_end: bool = False
    stop: bool = False
    log_entries: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the `due` of fastsft_state.json."""
        return dataclasses.asdict(self)

    def restore(self, saved: dict[str, Any] | None) -> None:
        """Restore the `due` of fastsft_state.json; None, as in old files, stands for no pending work."""
        vars(self).update(vars(PendingWork(**(saved or {}))))

    def clear(self) -> None:
        """Note that nothing is pending, when the work at the end of an epoch begins."""
        self.restore(None)

    def step_done(self) -> None:
        """Note that a step is done: the work at the end of the epoch is pending, if the step ends one."""
        self.restore({"epoch_end": True})

    def begin_evaluation(self, save: bool, log_entries: int) -> None:
        """Note that an evaluation begins; its results count only after `end_evaluation`.

        save: whether a checkpoint follows. log_entries: number of log entries before the evaluation.
        """
        self.evaluate, self.save, self.log_entries = True, save, log_entries

    def end_evaluation(self) -> None:
        """Note that the evaluation is done, so that its results count."""
        self.evaluate, self.save, self.log_entries = False, False, None


_NO_BEST = "--load_best_model_at_end: no evaluation had a finite metric to choose the best weights by"


def is_better(args: TrainingArguments, value: float, best: float) -> bool:
    """True if `value` is strictly better in the direction of `greater_is_better`; never for NaN."""
    return value > best if args.greater_is_better else value < best


class BestModel:
    """Keeps the best step and its checkpoint by `metric_for_best_model`, in the state of `run`.

    keeps_last: True after `load` if the best weights could not be loaded, and the last step's weights stay.
    """

    def __init__(self, run: SavedRun, events: Events) -> None:
        self._run, self._events = run, events
        self._saved_steps: set[int] = set()
        self._named: list[Path] = []  # all checkpoints that were the best one at some time, oldest first
        self._loaded: Path | None = None  # the checkpoint that `load` has loaded, until `remove_others`
        self.keeps_last = False

    def compare(self, metrics: dict[str, float]) -> None:
        """Compare the metric of an evaluation with the best so far, and note a better one.

        With `--save_strategy best`, ask for a checkpoint if it is better. ValueError if `metrics` lack
        metric_for_best_model.
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
        """Put the best checkpoint's path into the state before a checkpoint of `step` is written."""
        self._saved_steps.add(step)
        self._name_best()

    def failed(self, directory: Path) -> None:
        """Forget a checkpoint that could not be written; if it was the best, its predecessor is again."""
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
        """Load the weights of the best checkpoint if --load_best_model_at_end asks for them.

        Collective. The best checkpoint is the newest one that was the best when it was written; a line says
        so if a better step could not be saved (--on_save_error continue). If the checkpoint is missing or
        damaged, a line says so, and the weights of the last step stay (`keeps_last`). If only its training
        state is damaged, its model is loaded.
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
        """Load the checkpoint `best`; return a message if that is not possible. Collective."""
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
        """Remove all checkpoints but the loaded best one, with --save_total_limit 1. Collective.

        Return True if some may have been removed. Later calls do nothing and return False. Checkpoints of
        other programs stay, and all stay if the best one's training state was damaged.
        """
        loaded, self._loaded = self._loaded, None
        if loaded is None or self._args.save_total_limit != 1 or not self._is_own(loaded):
            return False
        keep_only(loaded, source_checkpoint(self._run.model, self._directory))
        return True

    def resumed(self, checkpoint: str) -> None:
        """Find the best checkpoint that the state of `checkpoint` names, and put its path into the state.

        Collective. It is looked for next to `checkpoint` first, with the same prefix (previous-<UTC time>-),
        as both may have been copied or archived; then at its old path.
        """
        best = self._state.best_model_checkpoint
        if best is not None:
            prefix = Path(checkpoint).name.rpartition("checkpoint-")[0]
            neighbour = Path(checkpoint).parent / (prefix + Path(best).name)
            self._state.best_model_checkpoint = first_existing(neighbour, best) or best

    def _is_own(self, checkpoint: Path) -> bool:
        """True if `checkpoint` belongs to this run: it is in `output_dir`, and not archived (previous-*)."""
        inside = checkpoint.parent.resolve() == self._directory.resolve()
        return inside and checkpoint.name.startswith("checkpoint-")

    def _standing(self, path: Path) -> str:
        """Return the metric of the loaded checkpoint as text, or the reason why it is not the best step's."""
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
