"""Run another framework's own code on records, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastsft.inspection.against.frameworks import ADAPTERS, Framework
from fastsft.runtime.terminal import one_line

MEMORY = 12 << 30  # bytes
_LAST_LINES = 3
_MOST_TEXT = 400  # characters of a framework's own error
# Nothing is downloaded, drawn on a GPU, or reported to a service.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TOKENIZERS_PARALLELISM": "false", "WANDB_MODE": "disabled", "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1", "DISABLE_VERSION_CHECK": "1", "AXOLOTL_DO_NOT_TRACK": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "PYTHONIOENCODING": "utf-8",
}  # fmt: skip


@dataclass(frozen=True)
class TheirRecord:
    """A record as a framework labels it. rows: (ids, labels) of each row. dropped: why there is none."""

    rows: list[tuple[list[int], list[int]]] = field(default_factory=list)
    dropped: str = ""


@dataclass(frozen=True)
class Answer:
    """The versions and settings with which a framework ran, and its records in order."""

    versions: dict[str, str]
    settings: dict[str, Any]
    records: list[TheirRecord]


@dataclass(frozen=True)
class DataPart:
    """Records that a framework reads itself. path: their file. numbers: their places in it, from 0.

    description: the framework's own description of the file, such as its entry of axolotl's `datasets`.
    """

    path: str
    numbers: list[int]
    description: Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """A run of a framework. adapter: its program. python: the interpreter that has the framework.

    model: the model directory. settings: of the framework, by its own names. seconds: the time limit.
    """

    framework: Framework
    adapter: Path
    model: str
    max_length: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    seconds: float = 600.0

    def run(self, records: Sequence[Mapping[str, Any]]) -> Answer:
        """Return the framework's rows of records in the form of record_for_others.

        ValueError if the framework is not installed, fails or takes too long.
        """
        lines = [json.dumps(record) + "\n" for record in records]
        return self._run({}, "".join(lines), len(records))

    def run_file(self, part: DataPart) -> Answer:
        """Return the framework's rows of records that it reads itself. ValueError as in `run`."""
        described = {"path": str(Path(part.path).resolve()), "numbers": part.numbers,
                     "description": dict(part.description)}  # fmt: skip
        return self._run({"data": described}, "", len(part.numbers))

    def _run(self, more: Mapping[str, Any], records: str, count: int) -> Answer:
        with tempfile.TemporaryDirectory(prefix="fastsft-against-") as name:
            folder = Path(name)
            request = {
                "model": str(Path(self.model).resolve()), "max_length": self.max_length,
                "settings": dict(self.settings), "memory": MEMORY, **more,
            }  # fmt: skip
            (folder / "request.json").write_text(json.dumps(request), "utf-8")
            (folder / "records.jsonl").write_text(records, "utf-8")
            status = self._call(folder)
            return self._read(folder, status, count)

    def _call(self, folder: Path) -> int:
        command = [self.python, str(ADAPTERS / "driver.py"), str(self.adapter), str(folder)]
        own = self.python == sys.executable
        kept = {
            key: value for key, value in os.environ.items() if own or key not in ("PYTHONPATH", "PYTHONHOME")
        }
        environment = {
            **kept, **_ENVIRONMENT, "HF_DATASETS_CACHE": str(folder / "cache"),
            "MODELSCOPE_CACHE": str(folder / "cache"),
        }  # fmt: skip
        with open(folder / "log", "wb") as log:
            try:
                process = subprocess.Popen(
                    command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise ValueError(
                    f"--against_python {self.python}: {error.strerror or error}; name the python of an "
                    f"environment that has {self.framework.title}, such as venv/bin/python"
                ) from error
            try:
                return process.wait(self.seconds)
            except subprocess.TimeoutExpired as error:
                limit = f"{self.seconds:g} s; show fewer records (-n), or raise --against_seconds"
                raise ValueError(f"{self.framework.title} takes more than {limit}") from error
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _read(self, folder: Path, status: int, count: int) -> Answer:
        try:
            text = (folder / "rows.jsonl").read_text("utf-8")
        except FileNotFoundError:
            text = ""
        entries = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        failure = next((entry["failure"] for entry in entries if "failure" in entry), None)
        if failure is not None or status != 0:
            raise ValueError(self._explained(failure, status, folder / "log"))
        if len(entries) != count + 1:
            raise ValueError(f"{self._name}: expected {count} answers, got {max(len(entries) - 1, 0)}")
        head, *found = entries
        return Answer(head["versions"], head["settings"], [_record(entry) for entry in found])

    @property
    def _name(self) -> str:
        return f"{self.framework.title} (its code was tried as of {self.framework.tried})"

    def _explained(self, failure: str | None, status: int, log: Path) -> str:
        """Return why the process failed, and the way out."""
        where = "this environment" if self.python == sys.executable else self.python
        if failure is not None and failure.startswith("ModuleNotFoundError"):
            missing = failure.split("'")[1] if "'" in failure else failure
            return (
                f"--against: {where} has no module {missing!r}; in an environment with torch and "
                f"transformers: {self.framework.command}; "
                "--against_python PATH names the Python of another environment"
            )
        if failure is None:
            lines = log.read_text("utf-8", "replace").strip().splitlines()[-_LAST_LINES:]
            ended = f"ended by signal {-status}" if status < 0 else f"exit status {status}"
            failure = f"{ended}: {' / '.join(lines)}"
        hint = f"; {self.framework.hint}" if self.framework.hint else ""
        return f"{self._name} fails in {where}: {_shortened(one_line(failure))}{hint}"


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} ..."


def _record(entry: Mapping[str, Any]) -> TheirRecord:
    rows = [(list(ids), list(labels)) for ids, labels in entry.get("rows", [])]
    return TheirRecord(rows, "" if rows else entry.get("dropped", "no row"))
