"""`--report_to mlflow`: logs to MLflow at MLFLOW_TRACKING_URI, a server or a directory (file:///...)."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import socket
import time
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

from fastsft.callbacks.callback import TrainerControl
from fastsft.callbacks.samples import sample_markdown
from fastsft.callbacks.state import TrainerState
from fastsft.runtime.messages import tell
from fastsft.trackers.tracker import (
    TrackedArguments,
    TrackedModel,
    Tracker,
    Values,
    check_writable,
    number,
    run_settings,
)

_SERVICES = ("databricks", "databricks-uc", "uc")  # tracking URIs that are not directories
_DATABASES = ("sqlite", "mysql", "postgresql", "mssql")
_PORTS = {"http": 80, "https": 443}
_PATIENCE = 20  # seconds to connect to a server
_log = logging.getLogger("fastsft")


class MlflowTracker(Tracker):
    """Tracker that logs metrics under their names in log_history, and settings as MLflow parameters.

    The tracker follows the environment variables that transformers follows: MLFLOW_TRACKING_URI,
    MLFLOW_EXPERIMENT_NAME, MLFLOW_TAGS (JSON), MLFLOW_NESTED_RUN, MLFLOW_RUN_ID, MLFLOW_MAX_LOG_PARAMS.
    """

    name = library = "mlflow"

    @classmethod
    def check(cls, args: TrackedArguments) -> None:
        """Raise ValueError if the tracking URI is a directory or database that MLflow cannot use, or a server
        that cannot be reached; MLflow itself would try a server for four minutes.
        """
        import mlflow

        uri = _choose_store(mlflow)
        if urlsplit(uri).scheme.partition("+")[0] in _DATABASES and not _has_sqlalchemy():
            raise ValueError(
                f"--report_to mlflow: the tracking URI {uri} is a database, for which sqlalchemy is not "
                "installed: pip install mlflow, or set MLFLOW_TRACKING_URI=file:./mlruns"
            )
        if (place := _directory(uri)) is not None:
            check_writable(place, f"--report_to mlflow: MLFLOW_TRACKING_URI {uri}", "another URI")
        _check_server(uri)

    def open(self, args: TrackedArguments, state: TrainerState, model: TrackedModel | None) -> None:
        """Begin an MLflow run, or continue the active run, and log the settings."""
        import mlflow

        self._mlflow: ModuleType = mlflow
        nested = os.environ.get("MLFLOW_NESTED_RUN", "").upper() in ("1", "TRUE", "YES", "ON")
        _choose_store(mlflow)
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

    def log_samples(self, samples: list[dict[str, str]], step: int) -> None:
        """Log prompts and replies as an artifact, a text for each step."""
        text = "\n\n---\n\n".join(map(sample_markdown, samples))
        self._mlflow.MlflowClient().log_text(self._run_id, text, f"samples/step-{step}.txt")

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


def _choose_store(mlflow: ModuleType) -> str:
    """Return the tracking URI: MLFLOW_TRACKING_URI, the script's, or MLflow's default, a database.

    If the library for the default is missing, as with mlflow-skinny, choose the directory mlruns instead.
    MLflow 3 refuses directories unless MLFLOW_ALLOW_FILE_STORE is set, so set it.
    """
    named = os.environ.get("MLFLOW_TRACKING_URI")
    if named and not mlflow.is_tracking_uri_set():
        mlflow.set_tracking_uri(named)
    uri: str = mlflow.get_tracking_uri()
    if uri.startswith("sqlite:") and not mlflow.is_tracking_uri_set() and not _has_sqlalchemy():
        uri = Path("mlruns").absolute().as_uri()
        mlflow.set_tracking_uri(uri)
        tell(f"--report_to mlflow: MLFLOW_TRACKING_URI is not set: writing to {Path('mlruns').absolute()}")
    if _directory(uri) is not None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return uri


def _check_server(uri: str) -> None:
    parts = urlsplit(uri)
    if parts.scheme not in _PORTS or parts.hostname is None or getproxies():
        return
    try:
        socket.create_connection((parts.hostname, parts.port or _PORTS[parts.scheme]), _PATIENCE).close()
    except OSError as error:
        raise ValueError(
            f"--report_to mlflow: expected a server at {uri}, got: {error.strerror or error}; start it, or "
            "set MLFLOW_TRACKING_URI=file:./mlruns for files"
        ) from None


def _has_sqlalchemy() -> bool:
    return importlib.util.find_spec("sqlalchemy") is not None


def _directory(uri: str) -> Path | None:
    """Return the directory of a tracking URI such as `file:///runs` or `./runs`; None for other URIs."""
    parts = urlsplit(uri)
    is_local = parts.scheme == "file" or (not parts.scheme and uri not in _SERVICES)
    return Path(unquote(parts.path) or "mlruns") if is_local else None
