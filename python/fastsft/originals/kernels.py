"""Kernels that a script has registered for torch's own operations: models compute with them."""

from __future__ import annotations

import sys
from collections.abc import Set

from fastsft.runtime.versions import KERNELS_OF_TORCH

# Dispatch keys under which a step computes; torch itself registers others of its operations in Python.
_COMPUTING = (
    "CPU", "CUDA", "Autograd", "AutogradCPU", "AutogradCUDA", "CompositeExplicitAutograd",
    "CompositeImplicitAutograd", "AutocastCPU", "AutocastCUDA",
)  # fmt: skip


def registered_kernels() -> Set[str]:
    """All that were registered from Python, as "namespace/operation/key"."""
    known = getattr(sys.modules.get("torch.library"), "_impls", None)
    return known if isinstance(known, set) else set()


def _of_torch() -> Set[str]:
    """Those that torch brings along."""
    module, names = KERNELS_OF_TORCH
    entries: set[str] = set()
    for name in names:
        known = getattr(sys.modules.get(module), name, None)
        for entry in known if isinstance(known, dict) else ():
            entries.add("/".join(entry if len(entry) == 3 else ("aten", *entry)))
    return entries


def check_kernels(caller: str) -> None:
    """ValueError for a kernel of an operation of torch that a script has overridden."""
    for entry in sorted(registered_kernels() - _of_torch()):
        namespace, _, rest = entry.partition("/")
        operation, _, key = rest.rpartition("/")
        if namespace == "aten" and key in _COMPUTING:
            raise ValueError(
                f"{caller}: torch.library has a kernel of the script for aten::{operation} ({key}), which a "
                "model of transformers would compute with, and the engine does not everywhere; leave the "
                "registration out (a fresh process), or train with transformers' Trainer"
            )
