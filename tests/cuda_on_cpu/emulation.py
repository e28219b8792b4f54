"""The CUDA kernels of this checkout on the CPU: their ops, orders of threads, counted launches."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

import torch

from cuda_on_cpu import build
from fastsft import _C  # noqa: F401  the ops that the kernels' ops call


class Order(IntEnum):
    """Which thread of a block goes on next, and in which order blocks run."""

    FORWARD = 0
    REVERSE = 1
    RANDOM = 2
    WARP_AHEAD = 3
    WARP_AHEAD_RANDOM = 4


@dataclass(frozen=True)
class Instance:
    """One instance of a kernel, `launches` so far."""

    file: str
    name: str
    launches: int


class Emulation:
    """The loaded library. `ops` are the ops of the CUDA path for tensors of the CPU."""

    def __init__(self, path: str) -> None:
        torch.ops.load_library(path)
        self._library = ctypes.CDLL(path)
        for name in ("file", "name"):
            getattr(self._library, f"cuda_on_cpu_instance_{name}").restype = ctypes.c_char_p
        self._library.cuda_on_cpu_instance_launches.restype = ctypes.c_uint64
        self._library.cuda_on_cpu_traced_accesses.restype = ctypes.c_uint64
        self._library.cuda_on_cpu_gain.restype = ctypes.c_double
        self.ops: Any = torch.ops.fastsft_on_cpu

    def schedule(self, order: Order, seed: int = 1, pattern: int = 0xFF) -> None:
        """How the next launches run; shared memory holds bytes `pattern` before each block."""
        self._library.cuda_on_cpu_schedule(int(order), seed, pattern)

    def instances(self) -> list[Instance]:
        library = self._library
        return [
            Instance(
                library.cuda_on_cpu_instance_file(i).decode(),
                library.cuda_on_cpu_instance_name(i).decode(),
                library.cuda_on_cpu_instance_launches(i),
            )
            for i in range(library.cuda_on_cpu_instances())
        ]

    def gemm_times(self, *milliseconds: float) -> None:
        """What a product takes by cuBLASLt's first, second and third proposal."""
        self._library.cuda_on_cpu_gemm_times(*map(ctypes.c_float, milliseconds))

    def gemm_loading(self, milliseconds: float) -> None:
        """What the first run by each proposal takes beyond that, from here on."""
        self._library.cuda_on_cpu_gemm_loading(ctypes.c_float(milliseconds))

    def gemm_refuses_above(self, rows: int | None) -> None:
        """Results of more rows run by the first proposal alone, though others pass cuBLASLt's check."""
        self._library.cuda_on_cpu_gemm_refuses_above(ctypes.c_int64(2**62 if rows is None else rows))

    @contextmanager
    def tuning_gemms(self) -> Iterator[None]:
        """Within it products are measured when they first run."""
        self._library.cuda_on_cpu_tune_gemms(True)
        try:
            yield
        finally:
            self._library.cuda_on_cpu_tune_gemms(False)

    def gains(self) -> list[float]:
        """Of each tuned product: times as fast as by the first proposal."""
        library = self._library
        return [library.cuda_on_cpu_gain(i) for i in range(library.cuda_on_cpu_tuned_gemms())]

    def change_gemms(self, change: str) -> None:
        """keep, put_back, forget, or spoil (glue/gemm_tuning.cpp) the tuned products."""
        getattr(self._library, f"cuda_on_cpu_{change}_gemms")()

    @property
    def traced_accesses(self) -> int:
        """Loads and stores that were compared with others; 0 in builds without the trace."""
        return int(self._library.cuda_on_cpu_traced_accesses())

    @contextmanager
    def instead_of_cpu_ops(self) -> Iterator[None]:
        """Within it torch.ops.fastsft on the CPU, the engine's calls included, runs the kernels."""
        self._library.cuda_on_cpu_replace_cpu_ops()
        try:
            yield
        finally:
            self._library.cuda_on_cpu_restore_cpu_ops()


@cache
def emulation() -> Emulation:
    """Compiles what is not compiled yet. CUDA_ON_CPU_LIBRARY names a library, CUDA_ON_CPU_BUILD a build."""
    path = os.environ.get("CUDA_ON_CPU_LIBRARY")
    return Emulation(path or str(build.library(os.environ.get("CUDA_ON_CPU_BUILD", "plain"))))
