"""Runs in which one call that changes a file fails or is the last one, and the same command again.

A run is recorded first: every call below its folders (call_faults.cpp counts them). Faults are then spread
over all kinds of calls and all moments of the run, each with the errors that such a call may return.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastsft import _C
from planted import state
from warm_ranks import Run, WarmRanks

SOURCE = Path(__file__).parents[1] / "faults" / "call_faults.cpp"
KILL_BEFORE, KILL_AFTER, SHORT, ONCE, FROM_THEN_ON = range(1, 6)  # as `Fault` of call_faults.cpp
ERRORS = {
    "create": ("ENOSPC", "EIO", "EDQUOT", "EROFS", "ENOMEM", "EACCES", "EMFILE"),
    "write": ("short", "ENOSPC", "EIO", "EDQUOT", "EFBIG"),
    "fsync": ("EIO", "ENOSPC", "EDQUOT"),
    "rename": ("EIO", "ENOSPC", "EROFS", "EACCES", "EDQUOT"),
    "unlink": ("EIO", "EROFS", "EACCES"),
    "close": ("EIO", "ENOSPC", "EDQUOT"),
    "mkdir": ("ENOSPC", "EIO", "EROFS", "EACCES", "EDQUOT"),
    "link": ("EIO", "ENOSPC", "EACCES", "EMLINK"),
    "truncate": ("EIO", "ENOSPC"),
}
MOMENTS = {
    r"\.fastsft-tmp-\d": "checkpoint",
    r"checkpoint-": "commit",
    r"\.fastsft-trash-checkpoint": "rotation",
    r"merged|\.fastsft-tmp-merged": "merged model",
    r"\.fastsft-(tmp-model|new|trash-\.fastsft-new)": "model",
    r"[^.].*": "names",
    "": "small files",
}
_LOGGED = ("loss", "eval_loss", "grad_norm", "learning_rate")


def build(folder: Path) -> Path:
    """The library to preload."""
    library = folder / "call_faults.so"
    compiler = os.environ.get("CXX") or shutil.which("c++")
    assert compiler, "expected a C++ compiler, which building fastsft needs too"
    subprocess.run([compiler, "-std=c++20", "-O1", "-fPIC", "-shared", SOURCE, "-o", library], check=True)
    return library


@dataclass(frozen=True)
class Fault:
    """At the `nth` call named `call` of a rank."""

    rank: int
    call: str
    nth: int
    kind: int
    error: str = ""

    @property
    def words(self) -> str:
        if self.kind in (KILL_BEFORE, KILL_AFTER):
            return f"killed {'before' if self.kind == KILL_BEFORE else 'after'}"
        return (
            "short" if self.kind == SHORT else f"{self.error} {'once' if self.kind == ONCE else 'for good'}"
        )


@dataclass
class Scenario:
    """Flags of a run, where it begins, and how many faults it gets."""

    flags: dict[str, Any]
    faults: int
    ranks: int = 1
    before: Path | None = None  # a folder that the output directory begins as
    cache: bool = False  # labelled data in a folder that counts
    calls: list[tuple[int, str, int]] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)


def moment_of(call: str) -> str:
    """Of a run, by the path that is changed."""
    return next(name for pattern, name in MOMENTS.items() if re.match(pattern, call.partition(" ")[2]))


def chosen(scenario: Scenario, seed: str) -> list[Fault]:
    """As many as the scenario gets, spread evenly over kinds of calls and moments; a third are kills."""
    draw = random.Random(seed)
    groups: dict[tuple[str, str], list[tuple[int, str, int]]] = defaultdict(list)
    for each in scenario.calls:
        groups[each[1].partition(" ")[0], moment_of(each[1])].append(each)
    for group in groups.values():
        draw.shuffle(group)
    kinds = {operation: _kinds(operation, draw) for operation in ERRORS}
    faults: list[Fault] = []
    for operation, moment in itertools.cycle(sorted(groups)):
        if len(faults) == scenario.faults or not any(groups.values()):
            return faults
        if groups[operation, moment]:
            faults.append(Fault(*groups[operation, moment].pop(), *next(kinds[operation])))
    return faults


def _kinds(operation: str, draw: random.Random) -> Iterator[tuple[int, str]]:
    """Faults of a call without end: a kill, two errors, a kill, ..., none rarer than another."""
    errors = [
        (kind, error) for kind in (ONCE, FROM_THEN_ON) for error in ERRORS[operation] if error != "short"
    ]
    errors += [(SHORT, "")] * ("short" in ERRORS[operation])
    draw.shuffle(errors)
    kills = itertools.cycle(draw.sample([(KILL_BEFORE, ""), (KILL_AFTER, "")], 2))
    for error in itertools.cycle(zip(errors[::2], errors[1::2] + errors[:1], strict=False)):
        yield next(kills)
        yield from error


class Sweep:
    """All trials of one warm process."""

    def __init__(self, warm: WarmRanks, folder: Path) -> None:
        self._warm, self._folder = warm, folder
        self._numbers = itertools.count()

    def record(self, scenario: Scenario) -> None:
        """A run without a fault: its calls, and its end."""
        place = self._folder / str(next(self._numbers))
        output = self._prepared(scenario, place)
        self.start(scenario, place, None).finish(120)
        scenario.end = end_of(output)
        for rank in range(scenario.ranks):
            seen: dict[str, int] = defaultdict(int)
            for call in (place / f"calls-{rank}").read_text().splitlines():
                seen[call] += 1
                scenario.calls.append((rank, call, seen[call]))

    def start(self, scenario: Scenario, place: Path, fault: Fault | None) -> Run:
        output, cache = place / "out", place / "cache"
        flags = {**scenario.flags, **({"data_cache": cache} if scenario.cache else {"data_cache": "none"})}
        number = getattr(errno, fault.error) if fault and fault.error else 0
        given = (fault.rank, fault.call, fault.nth, fault.kind) if fault else (-1, "", 0, 0)
        folders = [str(output), *([str(cache)] if scenario.cache else [])]
        act = ("count_calls", given[0], folders, str(place / "calls"), *given[1:], number)
        return self._warm.start(flags, output, scenario.ranks, act)

    def trial(self, scenario: Scenario, fault: Fault) -> Trial:
        """The run with its fault, and the same command again."""
        place = self._folder / str(next(self._numbers))
        output = self._prepared(scenario, place)
        before = [state(each) for each in others(place)]
        first = self.start(scenario, place, fault)
        first.wait(90)
        met = "met" in (place / f"calls-{fault.rank}").read_text().splitlines()
        for calls in place.glob("calls-*"):
            calls.unlink()
        second = self.start(scenario, place, None)
        second.wait(90)
        wrong = [] if met else ["the call never came"]
        wrong += faults_of_first(first, fault, output)
        if second.statuses != [0] * scenario.ranks:
            wrong.append(f"the second run ended with {second.statuses}: {second.all_text()[-2000:]}")
        else:
            end = without_protected(end_of(output), scenario.end, first.all_text() + second.all_text())
            wrong += [
                f"another {name}: {_difference(scenario.end[name], value)}"
                for name, value in end.items()
                if value != scenario.end[name]
            ]
        if [state(each) for each in others(place)] != before:
            wrong.append("files of others were touched")
        if not wrong:
            shutil.rmtree(place)
        return Trial(fault, first.statuses, said(first), second.statuses, wrong)

    def _prepared(self, scenario: Scenario, place: Path) -> Path:
        """The output directory, with files of others next to it and in it."""
        place.mkdir()
        output = place / "out"
        if scenario.before:
            shutil.copytree(scenario.before, output)
        for folder in others(place):
            folder.mkdir(parents=True)
            (folder / "config.json").write_text("mine")
            (folder / "model.safetensors").write_text("mine")
        return output


@dataclass(frozen=True)
class Trial:
    """What a fault led to."""

    fault: Fault
    first: list[int | None]
    said: str
    second: list[int | None]
    wrong: list[str]

    def row(self, scenario: str) -> str:
        """Of the table."""
        operation, _, path = self.fault.call.partition(" ")
        rank = f", rank {self.fault.rank}" if len(self.first) > 1 else ""
        statuses = [", ".join(map(str, each)) for each in (self.first, self.second)]
        cells = (
            f"{scenario}{rank}", f"{operation} {self.fault.nth}", f"`{path}`", self.fault.words, statuses[0],
            self.said.replace("|", "\\|"), statuses[1], "no" if self.wrong else "yes",
        )  # fmt: skip
        return f"| {' | '.join(cells)} |\n"


HEADER = (
    "# A fault at one file call of a run, and the same command again\n\n"
    "    FASTSFT_SWEEP_TABLE=benchmarks/results/fault_sweep.md pytest -n 0 -m chaos "
    "tests/saving/test_fault_sweep.py\n\n"
    "`call`: what failed, and at its which time under that name; `for good`: later calls fail, too. "
    "`same bits`: status 0,\nand model files, logged numbers, names and checkpoints as of the undisturbed "
    "run; files of others untouched.\n\n"
    "| run | call | file | fault | status | first line said | status again | same bits |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def others(place: Path) -> list[Path]:
    """Folders of others: next to the output directory, and in it under a name like those of checkpoints."""
    return [place / "neighbour", place / "out" / "checkpoint-mine"]


def end_of(output: Path) -> dict[str, Any]:
    """Model, numbers and names that a run leaves, with none of its times."""
    files = {
        str(path.relative_to(output)): path.read_bytes()
        for path in sorted(output.rglob("*"))
        if path.is_file() and path.relative_to(output).parts[0] in ("merged", path.name)
    }
    bits = {name: content for name, content in files.items() if _is_of_model(Path(name).name)}
    history = json.loads(files["trainer_state.json"])["log_history"]
    numbers = [(entry["step"], *(entry.get(name) for name in _LOGGED)) for entry in history]
    damaged = {name: _C.verify_directory(str(output / name)) for name in _C.list_checkpoints(str(output))}
    names = {
        re.sub("[0-9a-f]{16}", "*", str(path.relative_to(output)))
        for path in output.rglob("*")
        if not path.relative_to(output).parts[0].startswith("saved-")
    }
    return {"bits": bits, "numbers": numbers, "checkpoints": damaged, "names": names}


def without_protected(end: dict[str, Any], wanted: dict[str, Any], told: str) -> dict[str, Any]:
    """`end` without older checkpoints that could not be removed, of which a line was printed."""
    lines = [line for line in told.splitlines() if "it stays where it is" in line]
    kept = [name for name in end["checkpoints"] if any(f"/{name} " in line for line in lines)]
    spared = [name for name in kept if name not in wanted["checkpoints"] and not end["checkpoints"][name]]
    names = {name for name in end["names"] if Path(name).parts[0] not in spared}
    damaged = {name: value for name, value in end["checkpoints"].items() if name not in spared}
    return {**end, "names": names, "checkpoints": damaged}


def _is_of_model(name: str) -> bool:
    return not name.startswith(".") and (
        name.endswith((".safetensors", ".model", ".jinja"))
        or name.startswith(("config", "generation_config", "tokenizer", "special_tokens", "adapter"))
    )


def _difference(expected: Any, found: Any) -> Any:
    if isinstance(expected, dict):
        return sorted(
            name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
        )
    return sorted(map(str, set(expected) ^ set(found)))


def faults_of_first(run: Run, fault: Fault, output: Path) -> list[str]:
    """What is wrong with how the run with the fault ended."""
    if None in run.statuses:
        return [f"hung: {run.statuses}: {run.all_text()[-2000:]}"]
    if fault.kind in (KILL_BEFORE, KILL_AFTER):
        return [] if run.statuses[fault.rank] == -9 else [f"statuses {run.statuses}"]
    text = run.all_text()
    wrong = ["a traceback"] if "Traceback" in text else []
    if not any(run.statuses):
        return wrong
    if 0 in run.statuses:
        wrong.append(f"ranks disagree: {run.statuses}")
    told = [line for line in run.text(fault.rank, "err").splitlines() if "error: " in line]
    if not told or (str(output) not in "".join(told) and str(output.parent / "cache") not in "".join(told)):
        wrong.append(f"no error with its path: {text[-1500:]}")
    elif os.strerror(getattr(errno, fault.error or "EIO")) not in "".join(told):
        wrong.append(f"no reason: {told}")
    return wrong


def said(run: Run) -> str:
    """The first line of standard error, or of warnings."""
    for text in (run.text(rank, name) for name in ("err", "out") for rank in range(len(run.pids))):
        for line in text.splitlines():
            if "error" in line or line.startswith("warning"):
                return re.sub(r"/\S*/\d+/(out|cache)\b", r"\1", line)[:200]
    return ""
