"""`fastsft.launch`, which trains from a notebook or a script in child processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastsft.arguments.parsing.call_arguments import check_names, chooses_cpu
from fastsft.notebook.view import RunState, TrainingResult, View, view_for
from fastsft.program.interrupts import Interrupts
from fastsft.program.rank_failure import RankFailed, failure_of, is_error
from fastsft.program.rank_processes import Ranks
from fastsft.ranks.comparison_text import named_ranks
from fastsft.runtime.interactive import short_in_cells
from fastsft.runtime.near_names import missing_hint


@short_in_cells(ValueError, RankFailed, KeyboardInterrupt)
def launch(
    arguments: Sequence[str] | Mapping[str, Any] | None = None,
    *more: object,
    num_processes: int | None = None,
    script: str | Path | None = None,
    plot: bool = True,
    env: Mapping[str, str] | None = None,
    **flags: object,
) -> TrainingResult:
    """Run `python -m fastsft.train`, or `script`, on `num_processes` ranks of this machine until they end.

    arguments, flags: as for fastsft.train.train; for a script, a list of words. num_processes: by default one
    rank for each GPU, or 1 if there is no GPU. plot: True to draw the loss in a notebook cell; outside of a
    notebook, rank 0 prints lines. env: additional environment variables for the ranks. This process does not
    import torch.

    After an interrupt (the notebook's stop button or Ctrl-C), the ranks save a checkpoint, and
    KeyboardInterrupt is raised; the same call resumes. A second interrupt ends the ranks at once. If this
    process dies, the ranks save a checkpoint and exit. ValueError for arguments and data that cannot be used.
    RankFailed (a RuntimeError) has the message of the rank that failed first.
    """
    if more:
        raise TypeError(
            f"launch: expected one list of words or names with values, got {1 + len(more)} arguments; write "
            "launch(model_name_or_path=..., data_path=..., output_dir=...)"
        )
    job = _job(arguments, flags, script)
    count = default_processes(job["arguments"], job["script"]) if num_processes is None else num_processes
    if not isinstance(count, int):
        raise TypeError(f"num_processes: expected a number of ranks, such as 2, got {count!r}")
    if not isinstance(env, Mapping | None):
        raise TypeError(f'env: expected variables and values, as {{"NAME": "value"}}, got {env!r:.60}')
    if count < 1:
        raise ValueError(f"num_processes: expected at least 1, got {count}")
    view, run = view_for(plot), RunState()
    with Interrupts() as interrupts:
        with Ranks(job, count, env or {}, is_silent=view.is_silent, interrupts=interrupts) as ranks:
            _follow(ranks, view, run, interrupts)
        view.close(run)
    failure = failure_of(ranks)
    if failure is not None and interrupts.count < 2:
        raise failure
    if interrupts.count:
        raise KeyboardInterrupt(f"after step {run.status.step}; the same call resumes")
    path = None if run.output_dir is None else Path(run.output_dir)
    return TrainingResult(path, run.metrics(), run.log_history, run.status.step, count)


def _follow(ranks: Ranks, view: View, run: RunState, interrupts: Interrupts) -> None:
    """Show events and output until all ranks have exited, and pass interrupts on to the ranks."""
    answer = _Answer(ranks, interrupts)
    held: list[str] = []
    since = 0.0
    for kind, message in ranks.messages(answer):
        if kind == "event":
            run.apply(message)
            view.show(run)
        elif held or ranks.failed or is_error(message):
            held.append(message)  # becomes a part of the exception, unless the rank continues
            since = since if len(held) > 1 else time.monotonic()
            if not ranks.failed and time.monotonic() - since > _SECONDS_TO_FAIL:
                print("\n".join(held), flush=True)
                held.clear()
        else:
            # If prints are not flushed, a notebook combines them into one output.
            print(message, flush=not view.is_silent)
    if held and not ranks.failed:
        print("\n".join(held))


class _Answer:
    """Callback that ends the ranks after an interrupt, and reports ranks that take long to exit.

    `Ranks.messages` calls the object several times a second.
    """

    def __init__(self, ranks: Ranks, interrupts: Interrupts) -> None:
        self._ranks, self._interrupts, self._given = ranks, interrupts, 0
        self._said = 0.0

    def __call__(self) -> None:
        now, count = time.monotonic(), self._interrupts.count
        if count > self._given:
            self._given, self._said = count, now
            print(_ANSWERS[min(count, 2)], flush=True)
            self._ranks.end(signal.SIGTERM if count == 1 else signal.SIGKILL)
        elif count == 1 and now - self._said > _SECONDS_TO_LEAVE:
            self._said = now
            left = [rank.number for rank in self._ranks.ranks if rank.process.poll() is None]
            print(f"waiting for {named_ranks(left)} to save and leave; {_ONCE_MORE}", flush=True)


# if a rank still runs this long after the first line of an error, the lines are printed
_SECONDS_TO_FAIL = 5.0
_SECONDS_TO_LEAVE = 30.0  # seconds between two messages about ranks that have not exited
_ONCE_MORE = "once more ends them at once"
_ANSWERS = {
    1: f"interrupted: the ranks save a checkpoint and leave; {_ONCE_MORE}",
    2: "ended; the newest checkpoint is whole",
}


_FORM = "write launch(model_name_or_path=..., data_path=..., output_dir=...)"


def _job(
    arguments: Sequence[str] | Mapping[str, Any] | None, flags: Mapping[str, Any], script: str | Path | None
) -> dict[str, Any]:
    """Return a rank's job, which is sent as JSON. ValueError for arguments that no rank accepts."""
    if not isinstance(arguments, Iterable | None):
        raise TypeError(
            f"launch: expected a list of words, or names and values, got {arguments!r:.60}; {_FORM}"
        )
    argv = None if arguments is None or isinstance(arguments, Mapping | str) else [str(w) for w in arguments]
    if isinstance(arguments, str) or (argv is not None and flags):
        raise ValueError(f"expected a list of words, or names and values, got a string or both; {_FORM}")
    if script is not None:
        if flags or isinstance(arguments, Mapping):
            raise ValueError('a script gets a list of words, as ["--seed", "1"], got names and values')
        if not Path(script).is_file():
            raise ValueError(f"script: expected a Python file, got {script}{missing_hint(script)}")
    elif argv is None and not arguments and not flags:
        raise ValueError("expected arguments, for example model_name_or_path, data_path and output_dir")
    values = argv if argv is not None else {**(arguments or {}), **flags}  # type: ignore[dict-item]
    if isinstance(values, dict):
        if str(values.get("data_path")) == "-":
            raise ValueError("data_path='-': the ranks of fastsft.launch have no standard input; name a file")
        values = {name: os.fspath(v) if hasattr(v, "__fspath__") else v for name, v in values.items()}
        check_names(values)
    return {
        "arguments": [] if script is not None and not values else values,
        "script": None if script is None else str(script),
    }


def default_processes(arguments: Sequence[str] | Mapping[str, Any], script: str | None = None) -> int:
    """Count the GPUs on this machine; 1 if there is none, or if the arguments choose the CPU.

    Also 1 if the arguments cannot be parsed, because one rank then reports the error. This does not apply to
    a script, whose arguments may have their own form.
    """
    try:
        if chooses_cpu(arguments, None if script is None else Path(script).with_suffix(".args")):
            return 1
    except (ValueError, OSError):
        if script is None:
            return 1
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return max(len([name for name in visible.split(",") if name.strip() and name.strip() != "-1"]), 1)
    return max(len(list(Path("/dev").glob("nvidia[0-9]*"))), 1)
