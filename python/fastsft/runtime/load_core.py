"""Loads the native core after torch, and says in one sentence when the two do not fit."""

from __future__ import annotations

import importlib
from types import ModuleType

from fastsft.runtime.versions import minor_version, torch_problem


def load_native() -> ModuleType:
    """The module `fastsft._C`.

    ImportError when it is missing or was built with another torch, and for a torch outside the range.
    """
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
