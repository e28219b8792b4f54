"""The names of dtypes are those of the safetensors library."""

from __future__ import annotations

import safetensors.torch
import torch

from fastsft.runtime.dtypes import BITS, TORCH_NAMES


def test_names_and_sizes_are_those_of_the_library() -> None:
    theirs = dict(safetensors.torch._TYPES)
    del theirs["C64"]  # is saved, but never read
    assert {name: getattr(torch, TORCH_NAMES[name]) for name in theirs} == theirs
    assert {name: theirs[name].itemsize * 8 for name in theirs} == {name: BITS[name] for name in theirs}
    assert TORCH_NAMES.keys() - theirs.keys() <= {"F8_E8M0"}
