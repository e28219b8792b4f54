"""The memory that a rank may use on its device."""

from __future__ import annotations

from pathlib import Path

from fastsft.ranks.process_group import gather_objects
from fastsft.runtime.launch import launch

# A tenth of the host memory is left for Python, the tokenizer, the data set and saves. On a GPU, memory is
# reserved for cuBLAS, NCCL, evaluations, and the unit that a streamed save gathers.
_HOST_SHARE = 0.9
_DEVICE_SHARE = 0.97
_DEVICE_RESERVE = 3 << 30
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_host_memory() -> int:
    """Return the bytes that processes can still allocate: MemAvailable, or less if a cgroup limits them."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    for limit, usage in _CGROUPS:
        try:
            left = int(Path(limit).read_text()) - int(Path(usage).read_text())
        except (OSError, ValueError):  # the cgroup does not exist, or its limit is "max"
            continue
        available = min(available, left)
    return max(available, 0)


def usable_memory(device: str, free: float) -> int:
    """Return the part of the `free` bytes on `device` that a plan may fill; the rest is a reserve."""
    if device == "cpu":
        return int(free * _HOST_SHARE)
    return max(0, int(min(free * _DEVICE_SHARE, free - _DEVICE_RESERVE)))


def rank_memory(device: str) -> int:
    """Return the bytes that every rank can use: the smallest value over all ranks. Collective.

    On a GPU, a rank can use the free device memory; on a CPU, an equal part of the available RAM.
    """
    if device == "cpu":
        usable = available_host_memory() // launch().local_world_size
    else:
        import torch

        usable = int(torch.cuda.mem_get_info(device)[0])
    return int(min(gather_objects(usable_memory(device, usable))))


def size_text(size: float) -> str:
    """Format bytes as 12.3 GiB, 512 MiB or 3 KiB."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= factor:
            return f"{size / factor:,.{1 if size < 100 * factor else 0}f} {unit}"
    return f"{size / 1024:,.0f} KiB"


def peak_memory(device: str) -> int:
    """Return this process's peak memory in bytes: torch's allocations on a GPU, or resident memory."""
    if device == "cpu":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    import torch

    return int(torch.cuda.max_memory_allocated(device))
