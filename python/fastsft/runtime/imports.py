"""Import a package's names at their first use, and import the native core after torch."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType

from fastsft.runtime.cores import choose_core, is_release
from fastsft.runtime.near_names import nearest_text
from fastsft.runtime.versions import minor_version, torch_problem


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a `__getattr__` for the module `package` (PEP 562) that imports names when they are first used.

    homes: maps each name to the submodule that defines it.
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}{nearest_text(name, homes)}; it has "
                f"{', '.join(sorted(homes))}"
            )
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


# Sizes, in entries, of two compiled CPU GEMM caches: oneDNN's cache, and torch's cache of oneDNN objects.
# Their default is 1024 entries, which many sequence lengths fill and which then take 0.7 GiB. The sizes here
# are enough for the GEMMs of ten sequence lengths. Compiling a GEMM again takes less than a millisecond.
KEPT_PRODUCTS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "32"}


def bound_kept_products() -> None:
    """Set the sizes of the two caches of CPU GEMMs, unless the environment sets them.

    Must be called before the first GEMM, because both libraries read the environment then.
    """
    for name, entries in KEPT_PRODUCTS.items():
        os.environ.setdefault(name, entries)


def load_native() -> ModuleType:
    """Import and return the module `fastsft._C`; of a release wheel, the core for the installed torch.

    ImportError if the module is missing, if it was built with another release of torch, or if the installed
    torch is not supported.
    """
    bound_kept_products()
    import torch

    if is_release():
        return _load_from(str(choose_core(torch.__version__, torch.version.cuda)), torch.__version__)
    problem = torch_problem(torch.__version__)
    if problem is not None:
        raise ImportError(f"{problem}, then build fastsft again")
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


def _load_from(folder: str, torch_version: str) -> ModuleType:
    """Import `fastsft._C` from the folder of a release wheel's core."""
    path = sys.modules["fastsft"].__path__
    if folder not in path:
        path.append(folder)
    try:
        return importlib.import_module("fastsft._C")
    except ImportError as error:
        raise ImportError(
            f"fastsft's native core {folder} does not load with torch {torch_version} ({error}); expected a "
            "torch as PyPI or download.pytorch.org has it: pip install --force-reinstall "
            f"'torch=={minor_version(torch_version)}.*', or build fastsft from its sources"
        ) from None
