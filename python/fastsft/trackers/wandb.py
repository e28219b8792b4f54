"""`--report_to wandb`: logs to Weights & Biases; WANDB_MODE=offline keeps all data on this machine."""

from __future__ import annotations

import os
from types import ModuleType

from fastsft.callbacks.state import TrainerState
from fastsft.trackers.tracker import (
    TrackedArguments,
    TrackedModel,
    Tracker,
    Values,
    run_settings,
    tracker_names,
)

# transformers writes these values into the run's summary instead of a curve.
_SUMMARY = (
    "train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos",
)  # fmt: skip


class WandbTracker(Tracker):
    """Tracker that logs to the project WANDB_PROJECT (default: huggingface), with settings as run config."""

    name = library = "wandb"

    def open(self, args: TrackedArguments, state: TrainerState, model: TrackedModel | None) -> None:
        """Begin a wandb run, or continue the run that the script began.

        ValueError if WANDB_DISABLED is set.
        """
        if os.environ.get("WANDB_DISABLED", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise ValueError(
                "--report_to wandb, but WANDB_DISABLED is set; unset it, or use --report_to none"
            )
        import wandb

        self._wandb: ModuleType = wandb
        self._begun = wandb.run is None
        if self._begun:
            name = getattr(args, "run_name", None)
            project = os.environ.get("WANDB_PROJECT", "huggingface")
            wandb.init(project=project, **({"name": name} if name else {}))
        self._run = wandb.run
        self._wandb.config.update(run_settings(args, model), allow_val_change=True)
        self._wandb.define_metric("train/global_step")
        self._wandb.define_metric("*", step_metric="train/global_step", step_sync=True)
        if model is not None:
            self._wandb.config["model/num_parameters"] = model.num_parameters()

    def log(self, logs: Values, step: int) -> None:
        """Log a step's values; values for the whole run also go into the summary."""
        for name in _SUMMARY:
            if name in logs:
                self._wandb.run.summary[name] = logs[name]
        values = {name: value for name, value in logs.items() if name not in _SUMMARY}
        self._wandb.log({**tracker_names(values), "train/global_step": step})

    def log_samples(self, samples: list[dict[str, str]], step: int) -> None:
        """Log a table with the columns step, prompt and reply."""
        rows = [[step, sample["prompt"], sample["reply"]] for sample in samples]
        table = self._wandb.Table(columns=["step", "prompt", "reply"], data=rows)
        self._wandb.log({"samples": table, "train/global_step": step})

    def end(self) -> None:
        """Keep the wandb run open, as transformers does; the library finishes it at exit."""

    def is_lost(self) -> bool:
        """True if the script has called `wandb.finish()`."""
        return self._wandb.run is None

    def close(self, *, failed: bool) -> None:
        """Finish a wandb run that the tracker began; a run that the script began stays open."""
        if self._begun and self._wandb.run is self._run:
            self._wandb.finish(**({"exit_code": 1} if failed else {}))
