"""GPUs by name: what their data sheets say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


PCIE_LINK = 25e9  # bytes/s to another GPU where there is no NVLink


@dataclass(frozen=True)
class Gpu:
    """flops: dense bfloat16 FLOP/s. bandwidth: of its memory, bytes/s. memory: bytes that torch sees, about.

    link: bytes/s to one other GPU of a machine through NVLink, in one direction; 0: PCIe.
    """

    name: str
    flops: float
    bandwidth: float = 0.0
    memory: float = 0.0
    link: float = 0.0


def _gpu(name: str, tera: float, bandwidth: float = 0.0, memory: float = 0.0, link: float = 0.0) -> Gpu:
    """TFLOP/s, TB/s, GiB, GB/s."""
    return Gpu(name, tera * 1e12, bandwidth * 1e12, memory * 2**30, link * 1e9)


# The first name that the device's name holds counts, so longer names come before shorter ones.
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
    """The GPU of this machine; None for a CPU, and for a GPU that is not in the table."""
    if device.type != "cuda":
        return None
    import torch

    return gpu_named(torch.cuda.get_device_name(device))


def gpu_named(device_name: str) -> Gpu | None:
    """The GPU whose name `device_name` holds, as "NVIDIA H200"; None for one that is not in the table."""
    return next((gpu for gpu in GPUS if gpu.name.lower() in device_name.lower()), None)
