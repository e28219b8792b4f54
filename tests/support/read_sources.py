"""Reads the sources of libraries in a process that forks, which each of its ranks would read otherwise."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace
from typing import Any

from fastsft.model.alterations.check import check_patches
from fastsft.originals.trainer_patches import check_patched_functions
from fastsft.runtime.versions import library_major


def read_sources() -> None:
    """Keep the code of the files that fastsft compares torch, transformers and accelerate with.

    Only the files are kept: a rank looks for itself at the functions and classes that it has.
    """
    _read("transformers.trainer" in sys.modules, "transformers.modeling_utils" in sys.modules)


@functools.cache
def _read(*imported: bool) -> None:
    """Once for what is imported."""
    arguments: Any = SimpleNamespace(label_smoothing_factor=0.1, lr_scheduler_type="linear", _source=None)
    check_patched_functions(arguments, "a rank", training=True, has_collator=False)
    check_patches("llama", "a rank")
    library_major()
