"""Load names of a package when they are first used, and the native core after torch."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType

from fastsft.runtime.versions import minor_version, torch_problem


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a `__getattr__` for `package` (PEP 562). homes: the module below it that defines each name."""

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


# Sizes of two caches of compiled matrix products: oneDNN's, and torch's around it. Runs with many lengths
# reach the libraries' own bounds of 1024 entries, which take 0.7 GiB. These bounds suffice for the products
# at ten lengths; compiling a product again takes less than a millisecond.
KEPT_PRODUCTS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "32"}


def bound_kept_products() -> None:
    """Bound the two caches of CPU matrix products, unless the environment sets their sizes.

    Both libraries read the environment at their first product.
    """
    for name, entries in KEPT_PRODUCTS.items():
        os.environ.setdefault(name, entries)


def load_native() -> ModuleType:
    """Return the module `fastsft._C`.

    ImportError if it is missing or was built with another torch, and for an unsupported torch.
    """
    bound_kept_products()
    import torch

    problem = torch_problem(torch.__version__)
    if problem is not None:
        raise ImportError(problem)
    try:
        core = importlib.import_module("fastsft._C")
    except ImportError as error:
        raise ImportError(
            f"fastsft's native core does not load with torch {torch.__version__} ({error}); "
            "build it again in the source folder: pip install --force-reinstall --no-deps . (with a torch "
            "without CUDA add -C cmake.define.FASTSFT_CUDA=OFF)"
        ) from None
    if minor_version(core.torch_version) != minor_version(torch.__version__):
        raise ImportError(
            f"fastsft was built with torch {core.torch_version}, but torch {torch.__version__} is installed; "
            f"install torch {minor_version(core.torch_version)}.* or build fastsft again"
        )
    return core
