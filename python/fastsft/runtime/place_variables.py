"""The place of a process as launchers write it into the environment, checked before anybody waits for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

_PORTS = range(1, 1 << 16)
_MOST_RANKS = 1 << 24
_LOOPBACK = "127.0.0.1"


def number_of(env: Mapping[str, str], name: str, least: int = 0, below: int = _MOST_RANKS) -> int:
    """The variable `name` as a number. ValueError, naming it, where it is missing, none, or out of range."""
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
    """Rank, local rank, ranks, local ranks by torchrun's variables. ValueError as `number_of`."""
    world = number_of(env, "WORLD_SIZE", 1)
    rank = number_of(env, "RANK", 0, world)
    local_world = number_of(env, "LOCAL_WORLD_SIZE", 1, world + 1) if "LOCAL_WORLD_SIZE" in env else world
    local = number_of(env, "LOCAL_RANK", 0, local_world) if "LOCAL_RANK" in env else 0
    return rank, local, world, local_world


def is_slurm_step(env: Mapping[str, str]) -> bool:
    """True if this process is one of several tasks of a SLURM step. ValueError as `number_of`."""
    return "SLURM_STEP_NUM_TASKS" in env and number_of(env, "SLURM_STEP_NUM_TASKS", 1) > 1


def slurm_place(env: Mapping[str, str]) -> tuple[int, int, int, int]:
    """The same by the variables of a SLURM step: "2(x3),1" are the tasks of its machines, all alike."""
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
    """Host and port where the ranks meet; those of the SLURM step where nobody chose others.

    ValueError as `number_of`.
    """
    job = number_of(env, "SLURM_JOB_ID", below=1 << 62) if "SLURM_JOB_ID" in env else 0
    host = env.get("MASTER_ADDR", env.get("SLURM_LAUNCH_NODE_IPADDR", _LOOPBACK))
    port = {"MASTER_PORT": env.get("MASTER_PORT", str(20000 + job % 20000))}
    return host, number_of(port, "MASTER_PORT", _PORTS.start, _PORTS.stop)


def run_names(env: Mapping[str, str]) -> dict[str, str]:
    """Names that launchers give to all processes of one run."""
    return {
        name: env[name] for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID") if name in env
    }


def check_network(env: Mapping[str, str] | None = None) -> None:
    """ValueError for a port that is none, and for interfaces that this machine does not have."""
    env = os.environ if env is None else env
    if "MASTER_PORT" in env:
        number_of(env, "MASTER_PORT", _PORTS.start, _PORTS.stop)
    known = [name for _, name in socket.if_nameindex()]
    wanted = [name.strip() for name in env.get("GLOO_SOCKET_IFNAME", "").split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            raise ValueError(
                f"GLOO_SOCKET_IFNAME: this machine has no interface {name!r}; it has {', '.join(known)}"
            )
