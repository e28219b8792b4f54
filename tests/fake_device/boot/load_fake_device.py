"""Load the fake device before torch, and its replacements for kernels and ops behind torch.

FAKE_DEVICE names the folder of the libraries. `libfake_device.so` comes before NVIDIA's libraries in the
global scope, so its symbols win.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

FOLDER = Path(os.environ["FAKE_DEVICE"])


class LoadAfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch as the other finders do, and loads the replacements once torch is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_replace(module: ModuleType) -> None:
            execute(module)
            ctypes.CDLL(str(FOLDER / "libfake_device_ops.so")).fake_device_replace_ops()
            ctypes.CDLL(str(FOLDER / "libfake_device_kernels.so")).fake_device_add_kernels()
            # Attention by ops that the CPU has, too: there is no cuDNN here, nor a fused kernel.
            module.backends.cuda.enable_cudnn_sdp(False)
            module.backends.cuda.enable_flash_sdp(False)
            module.backends.cuda.enable_mem_efficient_sdp(False)

        spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


for library in ("libfake_device.so", "libcuda.so.1"):
    ctypes.CDLL(str(FOLDER / library), ctypes.RTLD_GLOBAL)
sys.meta_path.insert(0, LoadAfterTorch())
