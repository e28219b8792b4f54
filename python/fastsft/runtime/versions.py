"""Releases of Python, torch and transformers that go with fastsft; how they differ (docs/versions.md)."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

# The first and the last minor release of torch that the extension is built with. cmake/FastsftTorch.cmake
# reads the two lines. Where none of them is installed, pip builds with the one of the whole suite.
TORCH_FIRST = "2.11"
TORCH_LAST = "2.15"
TORCH_ISOLATED = "2.11"

# Functions of the libraries that put a wrapper around methods when a class is made: module and name. `strict`
# checks the fields of configurations since transformers 5.
WRAPPED_BY_BASES = {
    ("transformers.modeling_layers", "GradientCheckpointingLayer.__init_subclass__"),
    ("huggingface_hub.dataclasses", "strict"),
}

# Module and names of the kernels that torch itself registers from Python for its own operations next to CUDA:
# in 2.13 and 2.14 by (operation, key), since 2.15 by (namespace, operation, key).
KERNELS_OF_TORCH = ("torch._native.registry", ("_aten_override_libs", "_override_libs"))

# Functions whose code torch gives the name of the context that they enter, since 2.15: by module.
RENAMED_CODE = {
    "torch.utils._contextlib": (
        "context_decorator.<locals>.decorate_context",
        "_wrap_generator.<locals>.generator_context",
    )
}

# Modules of Python whose functions a dataclass has as methods; reprlib: its __repr__, since Python 3.13.
MODULES_OF_DATACLASSES = ("dataclasses", "reprlib")


@lru_cache
def transformers_version() -> str | None:
    """Of the installed transformers, which is not imported; None without one."""
    try:
        return version("transformers")
    except PackageNotFoundError:
        return None


def library_major() -> int:
    """4 or 5: the release of transformers that reads and computes here; 4 without one."""
    return 4 if (found := transformers_version()) is None or found.startswith("4.") else 5


def minor_version(version: str) -> str:
    """`2.11` of `2.11.0+cu130`."""
    return ".".join(version.split("+")[0].split(".")[:2])


def torch_requirement() -> str:
    """The range as pip takes it: `torch>=2.11,<2.16`."""
    major, minor = TORCH_LAST.split(".")
    return f"torch>={TORCH_FIRST},<{major}.{int(minor) + 1}"


def torch_problem(version: str) -> str | None:
    """One line for a release of torch outside the range; None for one inside."""
    first, last, found = (_numbers(each) for each in (TORCH_FIRST, TORCH_LAST, version))
    if found is not None and first is not None and last is not None and first <= found <= last:
        return None
    return (
        f"fastsft goes with torch {TORCH_FIRST} to {TORCH_LAST}, got torch {version}; "
        f"pip install '{torch_requirement()}', then build fastsft again"
    )


def _numbers(version: str) -> tuple[int, ...] | None:
    parts = minor_version(version).split(".")
    return tuple(map(int, parts)) if len(parts) == 2 and all(map(str.isdecimal, parts)) else None
