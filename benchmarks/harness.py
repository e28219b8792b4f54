"""Peers in alternation: A/B/A/B in one run, medians of pairwise ratios, one JSON record.

A side is a function that runs once and returns a `Run`: its metrics, and evidence of what it computed.
Timings count only when the evidence of both sides agrees. No speed is ever asserted; results are reported.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "fastsft",
    "torch",
    "transformers",
    "fschat",
    "accelerate",
    "sentencepiece",
    "tokenizers",
    "numpy",
)


@dataclass
class Run:
    """metrics: name -> number, the same names on both sides. evidence: anything `check` can compare."""

    metrics: dict[str, float]
    evidence: Any = None


@dataclass
class Ratio:
    """ours / baseline over the pairs of one metric, and the raw medians."""

    median: float
    minimum: float
    maximum: float
    baseline: float
    ours: float
    pairs: list[list[float]] = field(default_factory=list)


class UnequalResultsError(RuntimeError):
    """The two sides did not compute the same thing: the timing is void."""


Side = Callable[[], Run]
Check = Callable[[Any, Any], None]


def paired(
    baseline: Side, ours: Side, *, pairs: int = 3, warm_up: int = 1, check: Check | None = None
) -> dict[str, Ratio]:
    """Runs baseline, ours, baseline, ours, ... and returns the ratios ours / baseline by metric.

    The first `warm_up` pairs are checked but not counted. `check(evidence of baseline, evidence of ours)`
    raises UnequalResultsError.
    """
    kept: list[tuple[Run, Run]] = []
    for index in range(warm_up + pairs):
        label = f"warm-up {index + 1}/{warm_up}" if index < warm_up else f"pair {index - warm_up + 1}/{pairs}"
        pair = (timed(f"{label} baseline", baseline), timed(f"{label} ours", ours))
        if check is not None:
            check(pair[0].evidence, pair[1].evidence)
        if index >= warm_up:
            kept.append(pair)
    return ratios(kept)


def timed(label: str, side: Side) -> Run:
    start = time.perf_counter()
    run = side()
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in run.metrics.items())
    print(f"{label}: {numbers} ({time.perf_counter() - start:.1f}s)", flush=True)
    return run


def ratios(pairs: Sequence[tuple[Run, Run]]) -> dict[str, Ratio]:
    """Median, minimum and maximum of ours / baseline; both sides must report the same metrics."""
    result = {}
    for name in pairs[0][0].metrics:
        values = [[a.metrics[name], b.metrics[name]] for a, b in pairs]
        quotients = [b / a for a, b in values]
        result[name] = Ratio(
            median=statistics.median(quotients),
            minimum=min(quotients),
            maximum=max(quotients),
            baseline=statistics.median(a for a, _ in values),
            ours=statistics.median(b for _, b in values),
            pairs=values,
        )
    return result


def check_losses(baseline: Sequence[float], ours: Sequence[float], tolerance: float) -> float:
    """Largest absolute difference; raises UnequalResultsError past `tolerance` or when the lengths differ."""
    if len(baseline) != len(ours):
        raise UnequalResultsError(f"baseline logged {len(baseline)} losses, ours {len(ours)}")
    differences = [abs(a - b) for a, b in zip(baseline, ours, strict=True)]
    worst = max(differences, default=0.0)
    if not all(difference <= tolerance for difference in differences):  # NaN is never within
        raise UnequalResultsError(
            f"losses differ by {worst:.3e}, allowed {tolerance:.1e}: {baseline} against {ours}"
        )
    return worst


def run_json(command: Sequence[str], report: Path, *, env: Mapping[str, str] | None = None) -> Any:
    """Runs a side in its own process, which writes JSON to `report`; its output is shown when it fails."""
    report.unlink(missing_ok=True)
    environment = {**os.environ, **(env or {})}
    result = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if result.returncode != 0:
        raise RuntimeError(
            f"{shlex.join(command)} ended with {result.returncode}:\n{result.stdout}{result.stderr}"
        )
    return json.loads(report.read_text())


def write_result(
    name: str, results: Mapping[str, Ratio], settings: Mapping[str, Any], folder: Path = RESULTS
) -> Path:
    """Writes folder/<name>.json (ratios, raw medians, command, versions, hardware) and prints the table."""
    record = {
        "name": name,
        "ratios": {metric: asdict(ratio) for metric, ratio in results.items()},
        "settings": dict(settings),
        "command": shlex.join(["python", *sys.argv]),
        "versions": versions(PACKAGES),
        "hardware": hardware(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(table(name, results))
    return path


def table(name: str, results: Mapping[str, Ratio]) -> str:
    rows = [f"{name:<28}{'ours/baseline':>14}{'min':>9}{'max':>9}{'baseline':>12}{'ours':>12}"]
    for metric, r in results.items():
        rows.append(
            f"{metric:<28}{r.median:>14.3f}{r.minimum:>9.3f}{r.maximum:>9.3f}{r.baseline:>12.5g}{r.ours:>12.5g}"
        )
    return "\n".join(rows)


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Installed versions; a package that runs from its source tree or is missing is named as such."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def hardware() -> dict[str, Any]:
    names = [
        line.split(":", 1)[1].strip()
        for line in read("/proc/cpuinfo").splitlines()
        if line.startswith("model name")
    ]
    memory = [
        int(line.split()[1]) for line in read("/proc/meminfo").splitlines() if line.startswith("MemTotal")
    ]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory[0] / 2**20, 1) if memory else None,
    }


def peak_resident_bytes() -> int:
    """Peak resident set of this process image (VmHWM; ru_maxrss would count the parent before exec)."""
    return next(
        int(line.split()[1]) * 1024
        for line in read("/proc/self/status").splitlines()
        if line.startswith("VmHWM")
    )


def read(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""
