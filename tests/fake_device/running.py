"""Programs on the fake device: their environment, their reports and the ranks of one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastsft
from fake_device import build

HERE = Path(__file__).parent
TESTS = HERE.parent
GOLDEN = TESTS / "golden" / "trainer"
PACKAGE = Path(fastsft.__file__).parents[1]
LONG = 3600.0  # seconds of a program of many steps, on a machine that does other work as well
PATIENCE = 300  # seconds that a rank of such a program waits for the others


@dataclass(frozen=True)
class Count:
    """Calls of one name, and what they moved and computed."""

    calls: int
    bytes_read: int
    bytes_written: int
    flops: int


@dataclass(frozen=True)
class FakeDevice:
    """Settings of the fake device for the programs of a test, and the folder of their reports.

    schedule: "eager", "lazy", "random" or "mixed". races, counts: use kernels that report the bytes that they
    touch. settings: further variables without their prefix `FAKE_DEVICE_` (device/settings.cpp).
    """

    reports: Path
    schedule: str = "eager"
    seed: int = 1
    devices: int = 1
    races: bool = False
    counts: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return the environment of a Python program that runs on the fake device."""
        self.reports.mkdir(exist_ok=True)
        chosen: dict[str, Any] = {
            "": build.folder("trace" if self.races or self.counts else "plain"),
            "_REPORT": self.reports, "_SCHEDULE": self.schedule, "_SEED": self.seed,
            "_DEVICES": self.devices, "_RACES": int(self.races), "_COUNTS": int(self.counts),
            **{f"_{name}": value for name, value in self.settings.items()},
        }  # fmt: skip
        variables = {f"FAKE_DEVICE{name}": str(value) for name, value in chosen.items()}
        return {**environment_of_cpu(HERE / "boot"), **variables}

    def lines(self, kind: str) -> list[str]:
        """Return the lines that processes reported: "races", "wrong_calls" or "failures"."""
        files = sorted(self.reports.glob(f"{kind}.*"))
        return [line for file in files for line in file.read_text().splitlines()]

    def check(self) -> None:
        """Fail if a process made a wrong call, met a race, or had a failing operation."""
        found = {kind: self.lines(kind) for kind in ("wrong_calls", "races", "failures")}
        assert not any(found.values()), json.dumps(found, indent=1)

    def count(self) -> dict[str, Count]:
        """Return the counts of the only process, by name: "operation ..." and "call ..."."""
        (file,) = self.reports.glob("counts.*")
        rows = [line.split("\t") for line in file.read_text().splitlines()]
        return {name: Count(*map(int, numbers)) for *numbers, name in rows}


def environment_of_cpu(*first: Path) -> dict[str, str]:
    """Return the environment of a program without a device; `first` precede its search path."""
    paths = [*first, PACKAGE, TESTS, TESTS / "support", os.environ.get("PYTHONPATH", "")]
    search = os.pathsep.join(map(str, filter(None, paths)))
    return {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}


def start_program(
    device: FakeDevice | None, program: str, *arguments: str, ranks: int = 1
) -> list[subprocess.Popen[str]]:
    """Start a program of this folder on each rank, with pipes; device: None for the CPU."""
    environment = device.environment() if device else environment_of_cpu()
    command = [sys.executable, str(HERE / f"{program}.py"), *arguments]
    return [
        subprocess.Popen(
            command, env={**environment, "RANK": str(rank), "WORLD_SIZE": str(ranks)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip


def run_program(
    device: FakeDevice | None, program: str, *arguments: str, ranks: int = 1, seconds: float = 280
) -> list[Any]:
    """Run a program of this folder on each rank; return what the ranks printed last, as JSON.

    A rank that fails raises an AssertionError with the output of all.
    """
    started = start_program(device, program, *arguments, ranks=ranks)
    outputs = []
    try:
        outputs = [process.communicate(timeout=seconds) for process in started]
    finally:
        for process in started:
            process.kill()
    wrong = [process.returncode for process in started if process.returncode]
    assert not wrong, "\n".join(f"{out[-2000:]}\n{err[-6000:]}" for out, err in outputs)
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def train(
    device: FakeDevice | None, output: Path, flags: dict[str, Any], ranks: int = 1, seconds: float = 280
) -> subprocess.CompletedProcess[str]:
    """Run `python -m fastsft.train` with `flags` to its end, by torchrun if there are several ranks."""
    command = [sys.executable, "-m", "fastsft.train"]
    if ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        command[1:1] = launcher
    for name, value in {"output_dir": output, **flags}.items():
        command += [f"--{name}", str(value)]
    environment = device.environment() if device else environment_of_cpu()
    return subprocess.run(
        command, cwd=GOLDEN, env=environment, capture_output=True, text=True, timeout=seconds
    )
