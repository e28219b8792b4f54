"""Read this process's rank, world size, thread count and network from the launcher's environment variables.

All variables are checked before ranks wait for each other.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PORTS = range(1, 1 << 16)
_MOST_RANKS = 1 << 24
_LOOPBACK = "127.0.0.1"


def number_of(env: Mapping[str, str], name: str, least: int = 0, below: int = _MOST_RANKS) -> int:
    """Return the environment variable `name` as a number.

    least: the smallest valid number. below: the upper limit, exclusive. If the variable is missing or
    invalid, ValueError names it.
    """
    text = env.get(name)
    try:
        value = int(text or "")
    except ValueError:
        value = least - 1
    if not least <= value < below:
        raise ValueError(
            f"{name}: expected a number from {least} to {below - 1}, got "
            f"{'nothing' if text is None else repr(text)}; torchrun and srun set it for the ranks they start"
        )
    return value


def torchrun_place(env: Mapping[str, str]) -> tuple[int, int, int, int]:
    """Return (rank, local rank, world size, local world size) from torchrun's variables."""
    world = number_of(env, "WORLD_SIZE", 1)
    rank = number_of(env, "RANK", 0, world)
    local_world = number_of(env, "LOCAL_WORLD_SIZE", 1, world + 1) if "LOCAL_WORLD_SIZE" in env else world
    local = number_of(env, "LOCAL_RANK", 0, local_world) if "LOCAL_RANK" in env else 0
    return rank, local, world, local_world


def is_slurm_step(env: Mapping[str, str]) -> bool:
    """True if this process is one of a SLURM step's tasks. ValueError as in `number_of`."""
    return "SLURM_STEP_NUM_TASKS" in env and number_of(env, "SLURM_STEP_NUM_TASKS", 1) > 1


def slurm_place(env: Mapping[str, str]) -> tuple[int, int, int, int]:
    """Return (rank, local rank, world size, local world size) from the variables of a SLURM step.

    SLURM writes the tasks on each machine as "2(x3),1"; the first number is used for all machines. ValueError
    as in `number_of`.
    """
    world = number_of(env, "SLURM_STEP_NUM_TASKS", 1)
    tasks = env.get("SLURM_STEP_TASKS_PER_NODE", str(world)).split("(")[0].split(",")[0]
    local_world = number_of({"SLURM_STEP_TASKS_PER_NODE": tasks}, "SLURM_STEP_TASKS_PER_NODE", 1, world + 1)
    return (
        number_of(env, "SLURM_PROCID", 0, world),
        number_of(env, "SLURM_LOCALID", 0, local_world),
        world,
        local_world,
    )


def meeting_place(env: Mapping[str, str]) -> tuple[str, int]:
    """Return host and port of the rendezvous.

    They are MASTER_ADDR and MASTER_PORT or, without these variables, derived from the SLURM job. ValueError
    as in `number_of`.
    """
    job = number_of(env, "SLURM_JOB_ID", below=1 << 62) if "SLURM_JOB_ID" in env else 0
    host = env.get("MASTER_ADDR", env.get("SLURM_LAUNCH_NODE_IPADDR", _LOOPBACK))
    port = {"MASTER_PORT": env.get("MASTER_PORT", str(20000 + job % 20000))}
    return host, number_of(port, "MASTER_PORT", _PORTS.start, _PORTS.stop)


def run_names(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which launchers identify a run. They are equal in all its processes."""
    return {
        name: env[name] for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID") if name in env
    }


def check_network(env: Mapping[str, str] | None = None) -> None:
    """Raise ValueError if MASTER_PORT is invalid or GLOO_SOCKET_IFNAME names an interface that is missing."""
    env = os.environ if env is None else env
    if "MASTER_PORT" in env:
        number_of(env, "MASTER_PORT", _PORTS.start, _PORTS.stop)
    interfaces = [name for _, name in socket.if_nameindex()]
    requested = [name.strip() for name in env.get("GLOO_SOCKET_IFNAME", "").split(",") if name.strip()]
    for name in requested:
        if name not in interfaces:
            raise ValueError(
                f"GLOO_SOCKET_IFNAME: this machine has no interface {name!r}; it has {', '.join(interfaces)}"
            )


@dataclass(frozen=True)
class Launch:
    """This process's rank in the run and on its machine, and the rank counts of both."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1


class PlaceError(ValueError):
    """The launcher's environment variables are invalid or contradict each other."""


def launch(environ: Mapping[str, str] | None = None) -> Launch:
    """Read rank and world size from torchrun's variables or, if they are missing, from a SLURM step's.

    Without any of these variables the process is the only rank. PlaceError names an invalid variable.
    """
    env = os.environ if environ is None else environ
    try:
        # A RANK above 0 without WORLD_SIZE is refused: this process would train alone, in silence.
        is_lost = env.get("RANK", "0") != "0" and not is_slurm_step(env)
        if "RANK" in env and ("WORLD_SIZE" in env or is_lost):
            return Launch(*torchrun_place(env))
        return Launch(*slurm_place(env)) if is_slurm_step(env) else Launch()
    except ValueError as error:
        raise PlaceError(str(error)) from None


def launch_or_alone() -> Launch:
    """Return `launch()`, or that of a single rank if the variables are invalid. Used for messages only."""
    try:
        return launch()
    except ValueError:
        return Launch()


def threads_per_rank(environ: Mapping[str, str] | None = None) -> int:
    """Return the engine's thread count: OMP_NUM_THREADS, or the core count divided by the local rank count.

    OMP_NUM_THREADS=1 is ignored if torchrun started several ranks, because torchrun sets this by default. The
    count is limited to four threads per processor; a larger OMP_NUM_THREADS gives a warning.
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


_GET_ADDRESS = 0x8915  # SIOCGIFADDR


def interface_towards(host: str) -> str | None:
    """Return the network interface through which packets to `host` leave (IPv4); None if unknown.

    If `host` is this machine, return the interface that has the host's address. No packet is sent.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((socket.gethostbyname(host), 9))
            source = probe.getsockname()[0]
            return next((name for _, name in socket.if_nameindex() if _address(probe, name) == source), None)
    except OSError:
        return None


def _address(probe: socket.socket, name: str) -> str | None:
    try:
        reply = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
    except OSError:  # an interface without an IPv4 address
        return None
    return socket.inet_ntoa(reply[20:24])


_runs_own_code_alone = False


QUIET_LAUNCHER = "FASTSFT_QUIET_LAUNCHER"  # set by program/self_launch.py


def ends_with_traceback() -> bool:
    """True if torchrun has started this rank and will print a traceback after a signal."""
    return "TORCHELASTIC_RUN_ID" in os.environ and QUIET_LAUNCHER not in os.environ


@contextmanager
def only_own_code() -> Iterator[None]:
    """Declare that the block runs only fastsft's own code, and no code of a script."""
    global _runs_own_code_alone
    before, _runs_own_code_alone = _runs_own_code_alone, True
    try:
        yield
    finally:
        _runs_own_code_alone = before


def script_may_run() -> bool:
    """True if a script's code may run in this process; a Trainer then looks for the script's changes.

    False inside `only_own_code`, unless the process was started with a program other than fastsft's: such a
    program may have changed libraries before it called fastsft.
    """
    main = sys.modules.get("__main__")
    spec, path = getattr(main, "__spec__", None), Path(getattr(main, "__file__", None) or "")
    is_module = spec is not None and spec.name.partition(".")[0] == "fastsft"
    is_program = path.name == "fastsft" or path.resolve().parent == Path(__file__).resolve().parents[1]
    return not (_runs_own_code_alone and (is_module or is_program))
