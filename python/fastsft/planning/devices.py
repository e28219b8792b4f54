"""The memory that a rank may use on its device, and a table of GPU data sheets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.ranks.process_group import gather_objects
from fastsft.runtime.launch import launch

if TYPE_CHECKING:
    import torch

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


PCIE_LINK = 25e9  # bytes/s to another GPU if there is no NVLink


@dataclass(frozen=True)
class Gpu:
    """Data sheet of a GPU.

    flops: dense bfloat16 FLOP/s. bandwidth: memory bytes/s. memory: approximate bytes that torch sees. link:
    NVLink bytes/s to another GPU in each direction; 0 if the GPU has only PCIe.
    """

    name: str
    flops: float
    bandwidth: float = 0.0
    memory: float = 0.0
    link: float = 0.0


def _gpu(name: str, tera: float, bandwidth: float = 0.0, memory: float = 0.0, link: float = 0.0) -> Gpu:
    """Make a Gpu from TFLOP/s, TB/s, GiB and GB/s."""
    return Gpu(name, tera * 1e12, bandwidth * 1e12, memory * 2**30, link * 1e9)


# `gpu_named` takes the first entry whose name is part of the device name, so longer names come first.
GPUS = (
    _gpu("GB200", 2500.0, 8.0, 184.0, 900.0),
    _gpu("B200", 2250.0, 8.0, 178.0, 900.0),
    _gpu("B100", 1750.0, 8.0, 178.0, 900.0),
    _gpu("H100 NVL", 835.0, 3.9, 93.0, 300.0),
    _gpu("H100 PCIe", 756.0, 2.0, 79.0),
    _gpu("H100", 989.0, 3.35, 79.0, 450.0),
    _gpu("H200 NVL", 835.0, 4.8, 139.0, 450.0),
    _gpu("GH200", 989.0, 4.0, 94.0, 450.0),
    _gpu("H200", 989.0, 4.8, 139.0, 450.0),
    _gpu("H800 PCIe", 756.0, 2.0, 79.0),
    _gpu("H800", 989.0, 3.35, 79.0, 200.0),
    _gpu("H20", 148.0, 4.0, 95.0, 450.0),
    _gpu("A100-SXM4-40GB", 312.0, 1.55, 39.0, 300.0),
    _gpu("A100-PCIE-40GB", 312.0, 1.55, 39.0),
    _gpu("A100", 312.0, 2.0, 79.0, 300.0),
    _gpu("A800", 312.0, 2.0, 79.0, 200.0),
    _gpu("A30", 165.0, 0.933, 23.5),
    _gpu("A40", 149.7, 0.696, 44.5),
    _gpu("A10G", 70.0, 0.6, 22.0),
    _gpu("A10", 125.0, 0.6, 22.0),
    _gpu("L40S", 362.0, 0.864, 44.5),
    _gpu("L40", 181.0, 0.864, 44.5),
    _gpu("L4", 121.0, 0.3, 22.0),
    _gpu("RTX 6000 Ada", 364.2, 0.96, 47.5),
    _gpu("RTX A6000", 154.8, 0.768, 47.5),
    _gpu("RTX 5090", 209.5, 1.79, 31.5),
    _gpu("RTX 4090", 165.2, 1.01, 23.5),
    _gpu("RTX 3090", 71.0, 0.936, 23.5),
)


def gpu_of(device: torch.device) -> Gpu | None:
    """Return `device`'s data sheet; None for a CPU, and for a GPU that is not in the table."""
    if device.type != "cuda":
        return None
    import torch

    return gpu_named(torch.cuda.get_device_name(device))


def gpu_named(device_name: str) -> Gpu | None:
    """Return the data sheet for a device name such as "NVIDIA H200"; None if the table has none."""
    return next((gpu for gpu in GPUS if gpu.name.lower() in device_name.lower()), None)
