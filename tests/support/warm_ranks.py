"""Runs of `fastsft.train` on ranks forked from one warm process (warm_program.py), to be killed."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fastsft
from fastsft.ranks.store import HeldPort

SUPPORT = Path(__file__).parent
TRAINER = SUPPORT.parent / "golden" / "trainer"
OF_GENERIC_RUNS = ("transformers.modeling_utils", "peft")  # what the generic engine and its adapters import
_number = itertools.count()


def _words(value: Any) -> list[str]:
    return list(map(str, value)) if isinstance(value, list) else [str(value)]


class WarmRanks:
    """Starts runs; close it when done."""

    def __init__(self, logs: Path, environment: dict[str, str] | None = None) -> None:
        self._logs = logs
        paths = os.pathsep.join([str(Path(fastsft.__file__).parents[1]), str(SUPPORT)])
        hidden = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
        env = {name: value for name, value in os.environ.items() if name not in hidden}
        self._process = subprocess.Popen(
            [sys.executable, str(SUPPORT / "warm_program.py")],
            env={**env, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **(environment or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._answer() == "ready"

    def _answer(self, limit_s: float = 120.0) -> Any:
        assert self._process.stdout
        readable, _, _ = select.select([self._process.stdout], [], [], limit_s)
        assert readable, f"the warm process has not answered for {limit_s:g} seconds"
        line = self._process.stdout.readline()
        assert line, "the warm process is gone"
        return json.loads(line)

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer(60.0 + request.get("timeout", 60.0))

    def imports(self, *modules: str) -> None:
        """Ranks of later runs have these modules without the seconds of importing them."""
        assert self.ask({"import": modules}) == "imported"

    def start(
        self,
        flags: dict[str, Any],
        output: Path,
        ranks: int = 1,
        fault: tuple[Any, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> Run:
        """A run into `output`; `fault`: a function of injected_faults.py, and its arguments."""
        logs = self._logs / str(next(_number))
        logs.mkdir(parents=True)
        words = [word for name, value in flags.items() for word in (f"--{name}", *_words(value))]
        port = HeldPort()
        order = {
            "ranks": ranks, "port": port.number, "logs": str(logs), "folder": str(TRAINER), "fault": fault,
            "words": ["--output_dir", str(output), *words], "environment": environment or {},
        }  # fmt: skip
        return Run(self, self.ask({"start": order}), logs, port)

    def train(self, flags: dict[str, Any], output: Path, ranks: int = 1) -> str:
        """A run to its good end, which draws nothing; what rank 0 printed."""
        return self.start({"plot_loss": False, **flags}, output, ranks).finish(120)

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


class Run:
    """Ranks under way."""

    def __init__(self, warm: WarmRanks, pids: list[int], logs: Path, port: HeldPort) -> None:
        self._warm, self.pids, self.logs, self._port = warm, pids, logs, port
        self.statuses: list[int | None] = [None] * len(pids)
        self.started = time.monotonic()

    def text(self, rank: int = 0, name: str = "out") -> str:
        path = self.logs / f"rank-{rank}.{name}"
        return path.read_text() if path.exists() else ""

    def all_text(self) -> str:
        return "".join(path.read_text() for path in sorted(self.logs.iterdir()))

    def wait_for(self, words: str, rank: int = 0, name: str = "out", seconds: float = 60) -> None:
        """Until rank `rank` has printed `words`."""
        deadline = time.monotonic() + seconds
        path = self.logs / f"rank-{rank}.{name}"
        while not path.exists() or words not in path.read_text():
            assert time.monotonic() < deadline, f"{words!r} never came:\n{self.all_text()}"
            assert self.left() or words in path.read_text(), f"ended before {words!r}:\n{self.all_text()}"
            time.sleep(0.005)

    def left(self) -> list[int]:
        """Ranks that still run."""
        running = [rank for rank, status in enumerate(self.statuses) if status is None]
        if running:
            found = self._warm.ask({"wait": [self.pids[rank] for rank in running], "timeout": 0})
            for rank, status in zip(running, found, strict=True):
                self.statuses[rank] = status
        return [rank for rank, status in enumerate(self.statuses) if status is None]

    def send(self, number: int, *ranks: int) -> None:
        """A signal to `ranks`, or to all."""
        for rank in ranks or range(len(self.pids)):
            if self.statuses[rank] is None:
                os.kill(self.pids[rank], number)

    def wait(self, seconds: float = 60) -> list[int | None]:
        """Statuses of all ranks; those that still run after `seconds` are killed and have None."""
        running = [rank for rank, status in enumerate(self.statuses) if status is None]
        if running:
            found = self._warm.ask({"wait": [self.pids[rank] for rank in running], "timeout": seconds})
            for rank, status in zip(running, found, strict=True):
                self.statuses[rank] = status
        left = [rank for rank, status in enumerate(self.statuses) if status is None]
        for rank in left:
            (self.logs / f"rank-{rank}.threads").write_text(threads_of(self.pids[rank]))
        self.send(signal.SIGKILL, *left) if left else None
        if left:
            self._warm.ask({"wait": [self.pids[rank] for rank in left], "timeout": 10})
        self._port.close()
        return self.statuses

    def finish(self, seconds: float = 60) -> str:
        """Waits for the end, which must be good; what rank 0 printed."""
        assert self.wait(seconds) == [0] * len(self.pids), self.all_text()[-6000:]
        return self.text()


def threads_of(pid: int) -> str:
    """What the kernel says of each thread of a process that should be gone: name, state, where it waits."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError):
            state = re.search(r"^State:\s*(.*)$", (task / "status").read_text(), re.M)
            name, place = (task / "comm").read_text().strip(), (task / "wchan").read_text()
            lines.append(f"process {pid}, thread {task.name} ({name}): {state and state[1]}, in {place}\n")
    return "".join(lines)


def weights_digest(output: Path) -> str:
    """SHA-256 of the final model's files."""
    digest = hashlib.sha256()
    for path in sorted(output.glob("*.safetensors")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def losses(output: Path) -> dict[int, float]:
    """Logged loss by step."""
    history = json.loads((output / "trainer_state.json").read_text())["log_history"]
    return {entry["step"]: entry["loss"] for entry in history if "loss" in entry}


def spread(flags: dict[str, Any], ranks: int) -> dict[str, Any]:
    """`flags` for several ranks with the same global batch, where that divides it."""
    if ranks == 1:
        return flags
    batch = flags["per_device_train_batch_size"] * flags["gradient_accumulation_steps"]
    assert batch % ranks == 0
    return {
        **flags,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": batch // ranks,
        "fsdp": "full_shard",
    }
