"""Name the supported releases of torch and transformers, and handle their differences (docs/versions.md)."""

from __future__ import annotations

from functools import lru_cache

# First and last minor release of torch with which the extension builds; cmake/FastsftTorch.cmake reads both
# lines. If no torch is installed, pip builds with TORCH_ISOLATED, with which all tests are run.
TORCH_FIRST = "2.11"
TORCH_LAST = "2.15"
TORCH_ISOLATED = "2.11"

# Library functions, by module and name, that wrap a class's methods when the class is defined. Since
# transformers 5, `strict` checks the fields of configurations.
WRAPPED_BY_BASES = {
    ("transformers.modeling_layers", "GradientCheckpointingLayer.__init_subclass__"),
    ("huggingface_hub.dataclasses", "strict"),
}

# The dictionary of the Python kernels that torch registers for its own operations: module, and name in torch
# 2.13 and 2.14 (keys: operation, dispatch key) or since 2.15 (keys: namespace, operation, dispatch key).
KERNELS_OF_TORCH = ("torch._native.registry", ("_aten_override_libs", "_override_libs"))

# Functions, by module, whose code objects torch >= 2.15 renames after the context manager that they enter.
RENAMED_CODE = {
    "torch.utils._contextlib": (
        "context_decorator.<locals>.decorate_context",
        "_wrap_generator.<locals>.generator_context",
    )
}

# Modules of Python whose functions become dataclass methods. Since Python 3.13, reprlib has __repr__.
MODULES_OF_DATACLASSES = ("dataclasses", "reprlib")


@lru_cache
def transformers_version() -> str | None:
    """Return the version of transformers without importing it; None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow, and every worker imports this module

    try:
        return version("transformers")
    except PackageNotFoundError:
        return None


def library_major() -> int:
    """Return the major release of the installed transformers, 4 or 5; 4 if it is not installed."""
    return 4 if (installed := transformers_version()) is None or installed.startswith("4.") else 5


def minor_version(version: str) -> str:
    """Return major and minor release of a version: "2.11" for "2.11.0+cu130"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def torch_requirement() -> str:
    """Return the supported releases of torch as a requirement for pip: "torch>=2.11,<2.16"."""
    major, minor = TORCH_LAST.split(".")
    return f"torch>={TORCH_FIRST},<{major}.{int(minor) + 1}"


def torch_problem(version: str) -> str | None:
    """Return an error message if the torch release `version` is not supported; otherwise None."""
    first, last, installed = (_numbers(release) for release in (TORCH_FIRST, TORCH_LAST, version))
    if installed is not None and first is not None and last is not None and first <= installed <= last:
        return None
    return (
        f"fastsft goes with torch {TORCH_FIRST} to {TORCH_LAST}, got torch {version}; "
        f"pip install '{torch_requirement()}'"
    )


def _numbers(version: str) -> tuple[int, ...] | None:
    parts = minor_version(version).split(".")
    return tuple(map(int, parts)) if len(parts) == 2 and all(map(str.isdecimal, parts)) else None
