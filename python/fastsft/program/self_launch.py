"""The start of one rank per GPU through torchrun, if `python -m fastsft.train` runs without a launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.arguments.parsing.call_arguments import chooses_cpu
from fastsft.runtime.launch import QUIET_LAUNCHER, launch
from fastsft.runtime.near_names import nearest
from fastsft.runtime.search_path import child_environment
from fastsft.runtime.terminal import say

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

COUNT_VARIABLE = "FASTSFT_NUM_PROCESSES"
_VARIABLES = (COUNT_VARIABLE, "FASTSFT_CONSOLE", "FASTSFT_GGUF_CONVERTER")  # those that users set


def ranks_to_start(
    words: Sequence[str], environ: Mapping[str, str] | None = None, args_file: Path | None = None
) -> int:
    """Return how many ranks to start; 1 if this process should train itself.

    The number is FASTSFT_NUM_PROCESSES or, if that is not set, the GPU count. A build without CUDA and
    use_cpu (on the command line, in a --config file or in the .args file) count as one GPU, and so do `words`
    that cannot be parsed: only one process then reports the error. The result is always 1 for --help, and in
    a process that a launcher has started. args_file: default is the .args file next to the program.
    ValueError if FASTSFT_NUM_PROCESSES is below 1.
    """
    env = os.environ if environ is None else environ
    if "RANK" in env or launch(env).world_size > 1 or asks_for_help(words):
        return 1
    _tell_mistyped(env)
    chosen = env.get(COUNT_VARIABLE)
    if chosen is not None:
        if not chosen.isdigit() or int(chosen) < 1:
            raise ValueError(f"{COUNT_VARIABLE}: expected a number of ranks, at least 1, got {chosen!r}")
        return int(chosen)
    try:
        own = Path(sys.argv[0]).with_suffix(".args") if sys.argv[0] else None
        on_cpu = chooses_cpu(words, args_file or own)
    except (ValueError, OSError):
        return 1
    return 1 if on_cpu else _visible_gpus()


def _tell_mistyped(environ: Mapping[str, str]) -> None:
    """Warn about a variable whose name is nearly that of one of fastsft's variables, and so has no effect."""
    for name in environ:
        if (
            name.startswith("FASTSFT_")
            and name not in _VARIABLES
            and (near := nearest(name, _VARIABLES, 0.85))
        ):
            say(f"{name} in the environment has no effect; the nearest variable is {near}", to_stderr=True)


def asks_for_help(words: Sequence[str]) -> bool:
    flags = [word.partition("=")[0] for word in words]
    return any(flag == "-h" or (len(flag) > 3 and "--help".startswith(flag)) for flag in flags)


def start_ranks(count: int) -> None:
    """Replace this process by torchrun, which runs the same program and arguments on `count` ranks."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    program = ["-m", module.name] if module is not None else [sys.argv[0]]
    say(f"no launcher: starting {count} ranks on this machine ({COUNT_VARIABLE} chooses)")
    torchrun = str(Path(__file__).with_name("torchrun.py"))
    launcher = [sys.executable, "-P", torchrun, "--standalone", f"--nproc_per_node={count}"]
    os.execve(sys.executable, [*launcher, *program, *sys.argv[1:]], _rank_environment(module, count))


def _rank_environment(module: ModuleSpec | None, count: int) -> dict[str, str]:
    """Return the environment variables of the ranks.

    Unless OMP_NUM_THREADS is set, ranks share the cores evenly. A fastsft program does not import modules
    from the working directory, whereas a user's program does.
    """
    threads = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // count))}
    if module is None or module.name.split(".")[0] != "fastsft":
        return {**threads, **os.environ, QUIET_LAUNCHER: "1"}
    return {**threads, **child_environment(), "PYTHONSAFEPATH": "1", QUIET_LAUNCHER: "1"}


def _visible_gpus() -> int:
    from fastsft import _C

    if not _C.with_cuda:
        return 1
    import torch

    return max(1, torch.cuda.device_count())
