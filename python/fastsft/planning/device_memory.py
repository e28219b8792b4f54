"""Memory that a rank may use, and sizes as a person reads them."""

from __future__ import annotations

from pathlib import Path

from fastsft.ranks.process_group import gather_objects
from fastsft.runtime.launch import launch

# Of a host a tenth is left for Python, the tokenizer, the data set and saving. Of a GPU, where none of these
# live: for cuBLAS, NCCL, evaluation, and the unit that a streamed save gathers.
_HOST_SHARE = 0.9
_DEVICE_SHARE = 0.97
_DEVICE_RESERVE = 3 << 30
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


def available_host_memory() -> int:
    """Bytes that processes of this machine can still take: MemAvailable, or what the control group leaves."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    for limit, usage in _CGROUPS:
        try:
            left = int(Path(limit).read_text()) - int(Path(usage).read_text())
        except (OSError, ValueError):  # no such group, or "max"
            continue
        available = min(available, left)
    return max(available, 0)


def usable_memory(device: str, free: float) -> int:
    """Bytes of `free` that a plan may fill."""
    if device == "cpu":
        return int(free * _HOST_SHARE)
    return max(0, int(min(free * _DEVICE_SHARE, free - _DEVICE_RESERVE)))


def rank_memory(device: str) -> int:
    """Bytes for one rank, the smallest of all ranks: free on its GPU, or its share of the RAM; collective."""
    if device == "cpu":
        mine = available_host_memory() // launch().local_world_size
    else:
        import torch

        mine = int(torch.cuda.mem_get_info(device)[0])
    return int(min(gather_objects(usable_memory(device, mine))))


def size_text(size: float) -> str:
    """12.3 GiB, 512 MiB or 3 KiB."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= factor:
            return f"{size / factor:,.{1 if size < 100 * factor else 0}f} {unit}"
    return f"{size / 1024:,.0f} KiB"


def peak_memory(device: str) -> int:
    """Bytes that this process has had at most: of its GPU through torch, or resident on the CPU."""
    if device == "cpu":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    import torch

    return int(torch.cuda.max_memory_allocated(device))
