"""Checks of the installation, without any run in mind."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys

from fastsft.doctor.check import ProblemError
from fastsft.runtime.devices import missing_kernels
from fastsft.runtime.place import threads_per_rank

_LEAST_PYTHON = (3, 11)
_EXTRAS = {  # name in pyproject.toml -> module, which pip calls the same
    "parquet": "pyarrow", "zstd": "zstandard", "tensorboard": "tensorboard", "wandb": "wandb",
    "mlflow": "mlflow", "plot": "matplotlib", "notebook": "ipykernel", "ray": "ray",
}  # fmt: skip


def check_python() -> str:
    """At least 3.11."""
    found = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info < _LEAST_PYTHON:
        raise ProblemError(f"{found}; expected 3.11 or newer", "install a newer Python")
    return found


def check_torch() -> str:
    """The native core loads with the installed torch; both have CUDA, or neither."""
    import torch

    from fastsft import _C

    cuda = torch.version.cuda
    theirs = f"CUDA {cuda}" if cuda else "without CUDA"
    ours = "with CUDA kernels" if _C.with_cuda else "without CUDA kernels"
    text = f"torch {torch.__version__} ({theirs}), core built with torch {_C.torch_version} {ours}"
    if cuda and torch.cuda.is_available() and not _C.with_cuda:
        raise ProblemError(
            f"{text}: a GPU is here, and runs would compute on the CPU",
            "build fastsft where nvcc is found",
            "warning",
        )
    return text


def check_gpus() -> str:
    """Names and memory."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return "none seen: runs compute on the CPU"
    from fastsft import _C

    found = [torch.cuda.get_device_properties(number) for number in range(count)]
    for each in found:
        problem = missing_kernels((each.major, each.minor), _C.cuda_architectures) if _C.with_cuda else None
        if problem:
            raise ProblemError(f"{each.name}: {problem}", "build fastsft for this GPU")
    return ", ".join(f"{each.name} ({each.total_memory / 2**30:.0f} GiB)" for each in found)


def check_threads() -> str:
    """Of a rank that has the machine to itself, and whether native loops use them."""
    from fastsft import _C

    cores, threads = len(os.sched_getaffinity(0)), threads_per_rank()
    running = int(_C.parallel_threads(threads))
    if running < threads:
        raise ProblemError(
            f"{threads} threads are asked for, {running} run",
            "the core was built without OpenMP: build it again",
            "warning",
        )
    return f"{threads} threads on {cores} cores"


def check_extras() -> str:
    """The optional packages that are there."""
    there = [name for name, module in _EXTRAS.items() if importlib.util.find_spec(module)]
    absent = {name: module for name, module in _EXTRAS.items() if name not in there}
    install = f"; absent: {', '.join(absent)} (pip install {' '.join(absent.values())})" if absent else ""
    return f"there: {', '.join(there) or 'none'}{install}"
