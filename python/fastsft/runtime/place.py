"""The place of this process among the ranks, and the threads that it may use."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from fastsft.runtime.place_variables import is_slurm_step, slurm_place, torchrun_place


@dataclass(frozen=True)
class Launch:
    """The place of this process: global rank, rank on this machine, numbers of ranks."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1


class PlaceError(ValueError):
    """The launcher's variables give this process no place among the ranks."""


def launch(environ: Mapping[str, str] | None = None) -> Launch:
    """The place of this process by torchrun's variables, else by those of a SLURM step, else alone.

    PlaceError, naming the variable, where one of them makes no sense.
    """
    env = os.environ if environ is None else environ
    try:
        if "RANK" in env and "WORLD_SIZE" in env:
            return Launch(*torchrun_place(env))
        return Launch(*slurm_place(env)) if is_slurm_step(env) else Launch()
    except ValueError as error:
        raise PlaceError(str(error)) from None


def launch_or_alone() -> Launch:
    """`launch`, for messages: alone where the environment makes no sense, which others report."""
    try:
        return launch()
    except ValueError:
        return Launch()


def threads_per_rank(environ: Mapping[str, str] | None = None) -> int:
    """Threads for the engine: OMP_NUM_THREADS when chosen, else this machine's cores shared by its ranks.

    torchrun sets OMP_NUM_THREADS=1 when nobody did; that 1 is not a choice. More than four threads a
    processor are not made; a warning says so.
    """
    env = os.environ if environ is None else environ
    place = launch(env)
    chosen = env.get("OMP_NUM_THREADS", "")
    by_torchrun = chosen == "1" and "TORCHELASTIC_RUN_ID" in env and place.local_world_size > 1
    if chosen.isdigit() and int(chosen) > 0 and not by_torchrun:
        return _bounded(int(chosen), place)
    return max(1, len(os.sched_getaffinity(0)) // place.local_world_size)


def _bounded(chosen: int, place: Launch) -> int:
    most = 4 * (os.cpu_count() or 1)
    if chosen <= most:
        return chosen
    if place.rank == 0 and chosen not in _warned:
        _warned.add(chosen)
        logging.getLogger("fastsft").warning(
            "OMP_NUM_THREADS %d: this machine has %s processors; %d threads are used",
            chosen, os.cpu_count(), most,
        )  # fmt: skip
    return most


_warned: set[int] = set()


def is_notebook() -> bool:
    """True if output goes to cells."""
    return getattr(_shell(), "kernel", None) is not None


def is_interactive() -> bool:
    """True if somebody types at a prompt, which a SystemExit would close: Python's or IPython's."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or _shell() is not None


def _shell() -> object:
    """IPython's, or None; IPython is not imported to find out."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


_script_may_run = True


def no_script_runs() -> None:
    """Say that this process runs fastsft's own program and no code of a script."""
    global _script_may_run
    _script_may_run = False


def script_may_run() -> bool:
    """True if code of a script may run in this process, in which a Trainer looks for its changes."""
    return _script_may_run
