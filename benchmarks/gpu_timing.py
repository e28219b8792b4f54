"""Times on the GPU by events, and what every GPU benchmark writes down.

Without a GPU the same code runs on the CPU with small sizes ("smoke"): it shows that a benchmark works, and
its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from harness import RESULTS, hardware, versions

PEAK_TFLOPS = 989.0  # bf16, dense, data sheet of H100 and H200 SXM
MEASURED_TFLOPS = 790.0  # the reference GPU, 8192^3 in bf16
MEASURED_BYTES_PER_SECOND = 4.3e12  # the reference GPU, device to device
PACKAGES = ("fastsft", "torch", "nvidia-cublas", "nvidia-cudnn-cu13")

Work = Callable[[], None]


def parser(description: str) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=description)
    result.add_argument(
        "--smoke", nargs="?", choices=["cpu", "cuda"], const="cpu",
        help="small sizes, on the CPU: does it run at all?",
    )  # fmt: skip
    result.add_argument("--seconds", type=float, default=480, help="stop adding cases after this time")
    result.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON record")
    return result


def device(smoke: str | None) -> torch.device:
    """cuda, or the device of a smoke run; without a GPU anything but the CPU is refused."""
    name = smoke or "cuda"
    if name == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU; --smoke runs small sizes on the CPU")
    return torch.device(name)


def alternate(
    sides: Mapping[str, Work], where: torch.device, *, rounds: int = 5, target: float = 0.02
) -> dict[str, float]:
    """Median seconds of one call of each side; the sides take turns, each for `target` seconds a round."""
    calls = {name: repeat_count(work, where, target) for name, work in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            seconds[name].append(timed(work, where, calls[name]))
    return {name: statistics.median(values) for name, values in seconds.items()}


def repeat_count(work: Work, where: torch.device, target: float) -> int:
    timed(work, where, 2)  # warm-up
    return max(1, min(200, int(target / max(1e-7, timed(work, where, 2)))))


def timed(work: Work, where: torch.device, calls: int) -> float:
    """Seconds of one call, over `calls` calls in a row."""
    if where.type == "cpu":
        start = time.perf_counter()
        for _ in range(calls):
            work()
        return (time.perf_counter() - start) / calls
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000 / calls


class Budget:
    """Says when to stop adding cases."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def spent(self) -> bool:
        return time.monotonic() > self.end


def write(name: str, rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], folder: Path) -> Path:
    """folder/<name>.json: rows so far, command, versions, hardware. After each row: a run may be cut off."""
    record = {
        "name": name,
        "rows": [dict(row) for row in rows],
        "settings": dict(settings),
        "command": shlex.join(["python", *sys.argv]),
        "versions": {**versions(PACKAGES), "cuda": torch.version.cuda},
        "hardware": {
            **hardware(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=1) + "\n")
    return partial.replace(path)


def show(row: Mapping[str, Any]) -> None:
    print(
        "  ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in row.items()
        ),
        flush=True,
    )
