"""`--report_to mlflow`: logs to MLflow at MLFLOW_TRACKING_URI, a server or a directory (file:///...)."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from itertools import islice
from types import ModuleType
from typing import Any

from fastsft.callbacks.callback import TrainerControl
from fastsft.callbacks.state import TrainerState
from fastsft.trackers.tracker import TrackedArguments, TrackedModel, Tracker, Values, number, run_settings

_log = logging.getLogger("fastsft")


class MlflowTracker(Tracker):
    """Tracker that logs metrics under their names in log_history, and settings as MLflow parameters.

    The tracker follows the environment variables that transformers follows: MLFLOW_TRACKING_URI,
    MLFLOW_EXPERIMENT_NAME, MLFLOW_TAGS (JSON), MLFLOW_NESTED_RUN, MLFLOW_RUN_ID, MLFLOW_MAX_LOG_PARAMS.
    """

    name = library = "mlflow"

    def open(self, args: TrackedArguments, state: TrainerState, model: TrackedModel | None) -> None:
        """Begin an MLflow run, or continue the active run, and log the settings."""
        import mlflow

        self._mlflow: ModuleType = mlflow
        nested = os.environ.get("MLFLOW_NESTED_RUN", "").upper() in ("1", "TRUE", "YES", "ON")
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri and not mlflow.is_tracking_uri_set():
            mlflow.set_tracking_uri(uri)
        self._begun = mlflow.active_run() is None or nested or "MLFLOW_RUN_ID" in os.environ
        if self._begun:
            if "MLFLOW_EXPERIMENT_NAME" in os.environ:
                mlflow.set_experiment(os.environ["MLFLOW_EXPERIMENT_NAME"])
            mlflow.start_run(run_name=getattr(args, "run_name", None), nested=nested)
        self._run_id, self._has_ended = mlflow.active_run().info.run_id, False
        self._log_settings(run_settings(args, model))
        if "MLFLOW_TAGS" in os.environ:
            mlflow.set_tags(json.loads(os.environ["MLFLOW_TAGS"]))

    def _log_settings(self, settings: dict[str, Any]) -> None:
        from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH, MAX_PARAMS_TAGS_PER_BATCH

        too_long = [name for name, value in settings.items() if len(str(value)) > MAX_PARAM_VAL_LENGTH]
        if too_long:
            _log.warning("--report_to mlflow: too long for a parameter, left out: %s", ", ".join(too_long))
        most = os.environ.get("MLFLOW_MAX_LOG_PARAMS", "")
        short = ((name, value) for name, value in settings.items() if name not in too_long)
        items = iter(list(islice(short, int(most) if most.isdigit() else None)))
        while batch := dict(islice(items, MAX_PARAMS_TAGS_PER_BATCH)):
            self._mlflow.log_params(batch)

    def log(self, logs: Values, step: int) -> None:
        """Log numbers to the active MLflow run, as transformers does; if there is none, to the tracker's run.

        In names, characters that MLflow rejects become underscores. A warning names values that are not
        numbers.
        """
        metrics = {}
        for name, value in logs.items():
            if (scalar := number(value)) is not None:
                metrics[re.sub(r"[^0-9A-Za-z_\-. :/]", "_", name)] = scalar
            else:
                self.leave_out(name, value, "a number")
        if self._mlflow.active_run() is not None:
            self._mlflow.log_metrics(metrics, step=step)
            return
        now = int(time.time() * 1000)
        of_run = [self._mlflow.entities.Metric(name, value, now, step) for name, value in metrics.items()]
        self._mlflow.MlflowClient().log_batch(self._run_id, metrics=of_run)

    def on_train_begin(
        self, args: TrackedArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Open the tracker; a second training begins a new MLflow run."""
        if self._is_open and self._has_ended:
            self._is_open = False
        super().on_train_begin(args, state, control, **given)

    def end(self) -> None:
        """End the tracker's own MLflow run, so that the script can begin another.

        Later evaluations are still logged to the ended run.
        """
        self.close(failed=False)
        self._has_ended = True
        self.make_room()

    def close(self, *, failed: bool) -> None:
        active = self._mlflow.active_run()
        if self._begun and active is not None and active.info.run_id == self._run_id:
            self._mlflow.end_run("FAILED" if failed else "FINISHED")
