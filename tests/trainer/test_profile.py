"""--profile: which steps, which file, and a trace that viewers read."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastsft.arguments.values import parse_steps
from fastsft.trainer.profile import Profile, chrome_trace, profile_path


@pytest.mark.parametrize("text, steps", [("3-5", (3, 5)), ("4", (4, 4)), ("1-1", (1, 1))])
def test_steps(text: str, steps: tuple[int, int]) -> None:
    assert parse_steps(text) == steps


@pytest.mark.parametrize("text", ["", "0-2", "5-3", "a", "1-", "-3", "1-2-3"])
def test_bad_steps(text: str) -> None:
    with pytest.raises(ValueError, match="expected steps as 3-5 or 4"):
        parse_steps(text)


def test_a_file_a_rank() -> None:
    assert profile_path("a/trace.json", 0, 1) == Path("a/trace.json")
    assert profile_path("a/trace.json", 2, 3) == Path("a/trace.rank2.json")


def span(track: str, name: str, begin: int, end: int) -> Any:
    return SimpleNamespace(track=track, name=name, begin_ns=begin, end_ns=end, began=1, ended=2)


def test_slices_nest_and_crossing_ones_get_their_own_line() -> None:
    spans = [
        span("compute", "block", 1000, 9000), span("compute", "gemm", 2000, 3000),
        span("gather", "first", 1000, 5000), span("gather", "second", 4000, 8000),
    ]  # fmt: skip
    trace = chrome_trace(spans, 1, 7)
    slices = {e["name"]: e for e in trace["traceEvents"] if e["ph"] == "X"}
    assert slices["block"]["tid"] == slices["gemm"]["tid"]
    assert slices["first"]["tid"] != slices["second"]["tid"]
    assert (slices["gemm"]["ts"], slices["gemm"]["dur"], slices["gemm"]["pid"]) == (2.0, 1.0, 1)
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert names[slices["block"]["tid"]] == "compute" and names[slices["second"]["tid"]] == "gather (2)"
    assert trace["otherData"]["dropped_spans"] == 7


class Engine:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def start_trace(self, *, capacity: int) -> None:
        self.calls.append("start")

    def stop_trace(self) -> list[Any]:
        self.calls.append("stop")
        return [span("host", "step", 0, 10)]


@pytest.mark.parametrize("last_step, calls", [(9, ["start", "stop"]), (3, ["start", "stop"]), (1, [])])
def test_the_steps_named_are_recorded_even_if_the_run_is_shorter(
    tmp_path: Path, last_step: int, calls: list[str]
) -> None:
    engine, profile = Engine(), Profile(str(tmp_path / "new" / "trace.json"), "2-4")
    for step in range(1, last_step + 1):
        profile.before_step(engine, step)
        profile.after_step(engine, step)
    profile.finish(engine)
    assert engine.calls == calls
    if calls:
        assert json.loads((tmp_path / "new" / "trace.json").read_text())["displayTimeUnit"] == "ms"


def test_without_a_file_nothing_is_recorded() -> None:
    engine, profile = Engine(), Profile(None, "1-2")
    profile.before_step(engine, 1)
    profile.after_step(engine, 2)
    profile.finish(engine)
    assert engine.calls == []
