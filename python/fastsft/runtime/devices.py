"""Choose the device on which a rank computes."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fastsft.runtime.cores import way_to_kernels
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import warn_once


def choose_device(use_cpu: bool) -> str:
    """Return `cuda:<local rank>` if this machine has a GPU and `use_cpu` is False, else `cpu`.

    Creates no CUDA context. ValueError if the machine has fewer GPUs than ranks, if LOCAL_RANK is needed and
    not set, or if this build has no kernels for the GPU.
    """
    if use_cpu:
        return "cpu"
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    from fastsft import _C

    if not _C.with_cuda:
        way_out = way_to_kernels(torch.__version__, torch.version.cuda)
        warn_once(
            "a GPU is here, but fastsft was built without CUDA kernels and computes on the CPU; "
            f"{way_out} (silence this with --use_cpu True)"
        )
        return "cpu"
    place, count = launch(), torch.cuda.device_count()
    _check_local_rank(place.world_size, count, os.environ)
    if place.local_rank >= count:
        raise ValueError(
            f"rank {place.rank} is number {place.local_rank + 1} on a machine with {count} GPUs; start "
            f"{count} ranks on it (torchrun --nproc_per_node {count}), or use --use_cpu True"
        )
    if problem := missing_kernels(torch.cuda.get_device_capability(place.local_rank), _C.cuda_architectures):
        raise ValueError(f"{torch.cuda.get_device_name(place.local_rank)}: {problem}")
    return f"cuda:{place.local_rank}"


def missing_kernels(capability: tuple[int, int], architectures: str) -> str | None:
    """Return an error message if this build has no kernels for a GPU; else None.

    capability: the GPU's compute capability (major, minor). architectures: names as in CMake ("80,90",
    "90-real"). Machine code runs on GPUs of the same major version with the same or a higher minor version,
    PTX on all newer GPUs (CUDA C++ Programming Guide, "Application Compatibility").
    """
    major, minor = capability
    for entry in architectures.split(","):
        number, _, kind = entry.partition("-")
        if not number.isdigit():  # code for "90a" runs only on GPUs of exactly that version
            if number[:-1] == f"{major}{minor}":
                return None
            continue
        built = divmod(int(number), 10)
        has_code = built[0] == major and built[1] <= minor and kind != "virtual"
        if has_code or (built <= capability and kind != "real"):
            return None
    built_for = architecture_list(architectures)
    return (
        f"expected a GPU of an architecture that fastsft was built for ({built_for}), got "
        f"{major}{minor}; build it for this GPU in the source folder (pip install . -C "
        f"cmake.define.FASTSFT_CUDA_ARCHITECTURES={major}{minor}), or use --use_cpu True"
    )


def missing_fp8(capability: tuple[int, int], fp8: str) -> str | None:
    """Return an error message if cuBLASLt has no 8-bit products with these scales on a GPU; else None.

    capability: the GPU's compute capability. fp8: "none", "tensorwise" or "rowwise".
    """
    got = f"got {capability[0]}.{capability[1]}"
    if fp8 != "none" and capability < (8, 9):
        return f"--fp8 {fp8}: expected a GPU of compute capability 8.9 or newer, {got}; train without --fp8"
    if fp8 == "rowwise" and capability[0] != 9:
        return (
            f"--fp8 rowwise: expected a GPU of compute capability 9.0, where cuBLASLt has a scale for each "
            f"row, {got}; use --fp8 tensorwise"
        )
    return None


def check_fp8_device(device: str, fp8: str | None) -> None:
    """Raise ValueError if `device` is a GPU without the 8-bit products of --fp8."""
    if fp8 is None or device == "cpu":
        return
    import torch

    if problem := missing_fp8(torch.cuda.get_device_capability(device), fp8):
        raise ValueError(f"{torch.cuda.get_device_name(device)}: {problem}")


def architecture_list(architectures: str) -> str:
    """Return CMake's names of architectures as readers know them: "80, 90" for "80-real,90"."""
    return ", ".join(entry.partition("-")[0] for entry in architectures.split(","))


def _check_local_rank(world_size: int, gpus: int, env: Mapping[str, str]) -> None:
    """Raise ValueError if LOCAL_RANK is missing and all ranks of a machine would use its first GPU."""
    is_set = "LOCAL_RANK" in env or "RANK" not in env or env.get("LOCAL_WORLD_SIZE") == "1"
    if world_size > 1 and gpus > 1 and not is_set:
        raise ValueError(
            f"LOCAL_RANK: expected the number of this rank on its machine, which has {gpus} GPUs, got "
            "nothing; torchrun sets it for the ranks it starts, with LOCAL_WORLD_SIZE"
        )


def use_device(device: str, tf32: bool | None, deterministic: bool = False) -> None:
    """Make `device` the current device of this process, and configure torch. No effect on the CPU.

    tf32: allow TF32 in float32 matrix products. deterministic: let torch replace kernels whose results depend
    on timing, such as the backward of flash attention, by slower ones.
    """
    if device == "cpu":
        return
    import torch

    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = bool(tf32)
    if deterministic:
        torch.use_deterministic_algorithms(True)
        # By default torch then fills new memory with NaN, which costs time. No kernel reads memory that has
        # not been written.
        setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010  untyped there
