"""`--profile FILE`: a timeline of some steps, as a file for Perfetto or chrome://tracing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.arguments.values import parse_steps
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell
from fastsft.runtime.output_files import check_output_file, write_for_flag

if TYPE_CHECKING:
    from fastsft import _C

# Limit for recorded spans: a few steps of a model with 100 layers. Above the limit, the oldest
# spans are dropped, and the file says how many.
_CAPACITY = 1_000_000
_LANES = ("host", "compute", "gather", "exchange", "reduce", "upload", "parameters", "gradients")


def profile_path(path: str, rank: int, world_size: int) -> Path:
    """Return the rank's file: `path` itself in a run of one rank, else a name such as `trace.rank1.json`."""
    target = Path(path).expanduser()
    return target if world_size == 1 else target.with_suffix(f".rank{rank}{target.suffix}")


def chrome_trace(spans: Iterable[_C.RecordedSpan], rank: int, dropped: int) -> dict[str, Any]:
    """Return `spans` as a Chrome trace [microseconds]: one process per rank, one thread per track.

    dropped: number of dropped spans, which is noted in the trace.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}},
    ]
    for track, name in enumerate(_LANES):
        names = {"args": {"name": name}, "pid": rank, "tid": track}
        events.append({"ph": "M", "name": "thread_name", **names})
        events.append({"ph": "M", "name": "thread_sort_index", **names, "args": {"sort_index": track}})
    lines = _overlapping_apart(spans)
    for span, line in lines:
        tid = _LANES.index(span.track) + 100 * line
        events.append(
            {
                "ph": "X", "name": span.name, "cat": span.track, "pid": rank, "tid": tid,
                "ts": span.begin_ns / 1000, "dur": max(span.end_ns - span.begin_ns, 0) / 1000,
                "args": {"began": span.began, "ended": span.ended},
            }
        )  # fmt: skip
    for tid in {e["tid"] for e in events if e["ph"] == "X" and e["tid"] >= 100}:
        title = {"name": f"{_LANES[tid % 100]} ({tid // 100 + 1})"}
        events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": title})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"dropped_spans": dropped}}


def _overlapping_apart(spans: Iterable[_C.RecordedSpan]) -> list[tuple[_C.RecordedSpan, int]]:
    """Return each span with a line number within its track.

    Viewers nest a line's spans. If two spans overlap and neither contains the other, they therefore get
    different lines.
    """
    open_until: dict[tuple[str, int], list[int]] = {}
    placed = []
    for span in sorted(spans, key=lambda span: (span.begin_ns, -span.end_ns)):
        line = 0
        while True:
            stack = open_until.setdefault((span.track, line), [])
            while stack and stack[-1] <= span.begin_ns:
                stack.pop()
            if not stack or span.end_ns <= stack[-1]:
                stack.append(span.end_ns)
                placed.append((span, line))
                break
            line += 1
    return placed


class Profile:
    """The recording of the steps that `--profile_steps` names, written to one file per rank."""

    def __init__(self, path: str | None, steps: str) -> None:
        self._path = path
        self._first, self._last = parse_steps(steps)
        self._recording = False
        if path is not None:
            place = profile_path(path, launch().rank, launch().world_size)
            if os.path.lexists(place):  # a folder that is missing is made
                check_output_file(place, "--profile")

    def before_step(self, engine: _C.Engine, step: int) -> None:
        """Start the recording if `step`, which is about to begin, is the first step to record."""
        if self._path is not None and step == self._first:
            engine.start_trace(capacity=_CAPACITY)
            self._recording = True

    def after_step(self, engine: _C.Engine, step: int) -> None:
        """Write the file if `step`, which was just passed to the engine, is the last step to record."""
        if step == self._last:
            self.finish(engine)

    def finish(self, engine: _C.Engine) -> None:
        """Stop the recording and write the file; do nothing if there is no recording."""
        if not self._recording or self._path is None:
            return
        from fastsft import _C

        self._recording = False
        place = launch()
        path = profile_path(self._path, place.rank, place.world_size)
        trace = chrome_trace(engine.stop_trace(), place.rank, _C.trace_dropped())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_for_flag(path, json.dumps(trace), "--profile")
        tell(f"profile: {path}; open it at https://ui.perfetto.dev")
