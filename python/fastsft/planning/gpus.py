"""Data sheets of GPUs, looked up by name, and what fastsft cannot compute on a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastsft.runtime.devices import architecture_list, missing_fp8, missing_kernels

if TYPE_CHECKING:
    import torch

PCIE_LINK = 25e9  # bytes/s to another GPU if there is no NVLink
_FLASH = (8, 0)  # least compute capability of bfloat16 and FlashAttention-2
_CUDA_13 = (7, 5)  # least compute capability that nvcc 13 compiles for
_SHARED_MEMORY = {(7, 5): 64 << 10}  # bytes of a thread block; later GPUs have room for each of our kernels


@dataclass(frozen=True)
class Gpu:
    """Data sheet of a GPU.

    flops: dense FLOP/s in 16 bits with float32 sums. bandwidth: memory bytes/s. memory: approximate bytes
    that torch sees. link: NVLink bytes/s to another GPU in each direction; 0 if the GPU has only PCIe.
    capability: compute capability.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    link: float
    capability: tuple[int, int]

    @property
    def architecture(self) -> str:
        """Name of the compute capability as CMake has it, such as 89."""
        return "".join(map(str, self.capability))


def _gpu(name: str, capability: int, tera: float, bandwidth: float, memory: float, link: float = 0.0) -> Gpu:
    """Make a Gpu from its compute capability times ten, TFLOP/s, TB/s, GiB and GB/s."""
    return Gpu(name, tera * 1e12, bandwidth * 1e12, memory * 2**30, link * 1e9, divmod(capability, 10))


# NVIDIA's data sheets; docs/memory.md names them. `gpu_named` takes the first entry whose words are all in
# the device name, so entries with more words come first.
GPUS = (
    _gpu("GB200", 100, 2500.0, 8.0, 184.0, 900.0),
    _gpu("B200", 100, 2250.0, 8.0, 178.0, 900.0),
    _gpu("B100", 100, 1750.0, 8.0, 178.0, 900.0),
    _gpu("H100 NVL", 90, 835.0, 3.9, 93.0, 300.0),
    _gpu("H100 PCIe", 90, 756.0, 2.0, 79.0),
    _gpu("H100", 90, 989.0, 3.35, 79.0, 450.0),
    _gpu("H200 NVL", 90, 835.0, 4.8, 139.0, 450.0),
    _gpu("GH200 480GB", 90, 989.0, 4.0, 94.0, 450.0),  # the CPU's memory
    _gpu("GH200", 90, 989.0, 4.0, 94.0, 450.0),
    _gpu("H200", 90, 989.0, 4.8, 139.0, 450.0),
    _gpu("H800 PCIe", 90, 756.0, 2.0, 79.0),
    _gpu("H800", 90, 989.0, 3.35, 79.0, 200.0),
    _gpu("H20", 90, 148.0, 4.0, 95.0, 450.0),
    _gpu("A100-PCIE-40GB", 80, 312.0, 1.55, 39.0),
    _gpu("A100-40GB", 80, 312.0, 1.55, 39.0, 300.0),
    _gpu("A100 PCIe", 80, 312.0, 1.94, 79.0),
    _gpu("A100", 80, 312.0, 2.0, 79.0, 300.0),
    _gpu("A800", 80, 312.0, 2.0, 79.0, 200.0),
    _gpu("A30", 80, 165.0, 0.933, 23.5),
    _gpu("A40", 86, 149.7, 0.696, 44.5),
    _gpu("A10G", 86, 70.0, 0.6, 22.0),
    _gpu("A10", 86, 125.0, 0.6, 22.0),
    _gpu("L40S", 89, 362.0, 0.864, 44.5),
    _gpu("L40", 89, 181.0, 0.864, 44.5),
    _gpu("L4", 89, 121.0, 0.3, 22.0),
    _gpu("RTX 6000 Ada", 89, 364.2, 0.96, 47.5),
    _gpu("RTX A6000", 86, 154.8, 0.768, 47.5),
    _gpu("RTX 5090", 120, 209.5, 1.79, 31.5),
    _gpu("RTX 4090", 89, 165.2, 1.01, 23.5),
    _gpu("RTX 3090", 86, 71.0, 0.936, 23.5),
    _gpu("T4", 75, 65.0, 0.32, 14.7),
    _gpu("V100-PCIE-32GB", 70, 112.0, 0.9, 31.7),
    _gpu("V100-32GB", 70, 125.0, 0.9, 31.7, 150.0),
    _gpu("V100-PCIE", 70, 112.0, 0.9, 15.8),
    _gpu("V100", 70, 125.0, 0.9, 15.8, 150.0),
)
_SIZE = re.compile(r"(?<![\w.])(\d+) *gi?b?\b|(?<![\w.])(16|24|32|40|48|80|96|141)(?![\w.])")
_BRANDS = re.compile(r"nvidia|geforce|tesla|quadro|rtx")
# A laptop's chip has a larger one's name, and a MIG slice or a virtual GPU ("A40-8Q") its GPU's.
_OTHER_CHIPS = {"laptop", "mobile", "mig", "max", "d", "ti", "super"}
_VIRTUAL = re.compile(r"\d+[abcq]")


def gpu_of(device: torch.device) -> Gpu | None:
    """Return `device`'s data sheet; None for a CPU, and for a GPU that is not in the table."""
    if device.type != "cuda":
        return None
    import torch

    return gpu_named(torch.cuda.get_device_name(device))


def gpu_named(device_name: str) -> Gpu | None:
    """Return the data sheet for a name such as "NVIDIA H200" or "rtx4090"; None if the table has none."""
    words = _words(device_name)
    if words & _OTHER_CHIPS or any(map(_VIRTUAL.fullmatch, words)):
        return None
    return next((gpu for gpu in GPUS if _words(gpu.name) <= words), None)


def named_memory(device_name: str) -> int | None:
    """Return the GiB in a name such as "A100-40GB" or "a100 40"; None without such a word."""
    found = _SIZE.search(device_name.lower().replace("_", " "))
    return int(found[1] or found[2]) if found else None


def _words(name: str) -> set[str]:
    """Return the words of a GPU's name in lower case, without brands; "40 GB", "40g" and "40" are "40gb"."""
    joined = _SIZE.sub(r"\1\2gb", name.lower().replace("_", " "))
    return set(re.split(r"[^a-z0-9.]+", _BRANDS.sub(" ", joined))) - {""}


def has_bfloat16(gpu: Gpu | None) -> bool:
    """Return True if `gpu` computes bfloat16; an unknown device is taken to do so."""
    return gpu is None or gpu.capability >= _FLASH


def cannot_run(gpu: Gpu, compute_dtype: str, head_dim: int | None, fp8: str = "none") -> str | None:
    """Return the reason why fastsft cannot train on `gpu`, and the way out; None if there is none.

    head_dim: head size of a model in the native engine; None for another engine. fp8: scales of 8-bit
    products, "none", "tensorwise" or "rowwise".
    """
    about = f"{gpu.name} (compute capability {gpu.capability[0]}.{gpu.capability[1]})"
    if gpu.capability < _CUDA_13:
        return (
            f"{about}: fastsft has no kernels for it, because CUDA 13 compiles for 7.5 and newer; expected a "
            "newer GPU"
        )
    if compute_dtype == "bfloat16" and not has_bfloat16(gpu):
        return f"{about} computes no bfloat16; expected --fp16 True instead of --bf16 True"
    if problem := missing_fp8(gpu.capability, fp8):
        return f"{gpu.name}: {problem}"
    if head_dim is None or gpu.capability not in _SHARED_MEMORY:
        return None
    needed, there = _attention_memory(head_dim), _SHARED_MEMORY[gpu.capability]
    if needed <= there:
        return None
    return (
        f"{about}: attention with heads of {head_dim} needs {needed / 1024:.0f} KiB of shared memory and "
        f"{there // 1024} KiB are there (FlashAttention-2 needs 8.0); expected a newer GPU, or a model with "
        "heads of at most 64, such as Qwen2.5-0.5B or Llama-3.2-1B"
    )


def _attention_memory(head_dim: int) -> int:
    """Return the shared-memory bytes of our own attention's backward pass (attention_backward.cu)."""
    import torch

    from fastsft import _C  # noqa: F401  registers the op

    padded, rows = torch.ops.fastsft.plan_tiles(head_dim)
    return int(4 * (4 * rows * (padded + 1) + 2 * rows * (rows + 1)))


def build_note(gpu: Gpu) -> str | None:
    """Return a note that this build has no kernels for `gpu`; None if it has them."""
    from fastsft import _C

    if _C.with_cuda and missing_kernels(gpu.capability, _C.cuda_architectures) is None:
        return None
    there = f"for {architecture_list(_C.cuda_architectures)} only" if _C.with_cuda else "for the CPU only"
    return (
        f"this build has kernels {there}: for {gpu.name} build it with "
        f"-C cmake.define.FASTSFT_CUDA_ARCHITECTURES={gpu.architecture} (docs/gpu.md)"
    )
