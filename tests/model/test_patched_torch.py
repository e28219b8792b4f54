"""A torch that a script has patched, before transformers is imported: a directory is not trained by it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

# Each line of CASES is run in a process without transformers; the fault of check_patches is printed.
PROGRAM = """
import functools, json, sys
import torch
import torch.nn.functional as F
from fastsft.model.alterations.check import check_patches

def own(*args, **options):
    return None

def fault():
    try:
        check_patches("llama", "Trainer")
    except ValueError as error:
        return str(error)
    return None

found = {"": [fault(), fault()]}
for owner, name, value in json.loads(sys.argv[1]):
    place = eval(owner)
    was = getattr(place, name)
    setattr(place, name, eval(value))
    found[f"{owner}.{name} = {value}"] = [fault()]
    setattr(place, name, was)
handle = torch.nn.modules.module.register_module_forward_hook(own)
found["hook"] = [fault()]
handle.remove()
found["imported"] = ["transformers" in sys.modules]
torch.load = own
found["torch.load"] = [fault()]
print(json.dumps(found))
"""
REPLACED = "is replaced by __main__.own, which has no effect on fastsft"
CASES = {
    ("F", "cross_entropy", "own"): f"torch.nn.functional.cross_entropy {REPLACED}",
    ("F", "linear", "own"): f"torch.nn.functional.linear {REPLACED}",
    ("F", "embedding", "own"): f"torch.nn.functional.embedding {REPLACED}",
    ("F", "silu", "own"): f"torch.nn.functional.silu {REPLACED}",
    ("F", "scaled_dot_product_attention", "own"): f"functional.scaled_dot_product_attention {REPLACED}",
    ("torch.nn.Module", "__call__", "own"): f"module.Module.__call__ {REPLACED}",
    ("torch.nn.Module", "_call_impl", "own"): f"module.Module._call_impl {REPLACED}",
    ("torch.nn.Linear", "forward", "own"): f"linear.Linear.forward {REPLACED}",
    ("torch.nn.Linear", "__init__", "own"): f"linear.Linear.__init__ {REPLACED}",
    (
        "torch.nn",
        "Linear",
        "type('Linear', (F.linear.__class__.__mro__[-1],), {})",
    ): "torch.nn.Linear is repl",
    ("torch", "rsqrt", "own"): f"torch.rsqrt {REPLACED}",
    ("torch.Tensor", "pow", "own"): f"torch.Tensor.pow {REPLACED}",
    ("torch.Tensor", "__matmul__", "own"): f"torch.Tensor.__matmul__ {REPLACED}",
    ("F", "cross_entropy", "functools.partial(F.cross_entropy, label_smoothing=0.1)"): (
        "is replaced by functools.partial of torch.nn.functional.cross_entropy"
    ),
    ("F.cross_entropy", "__defaults__", "(None, None, 5, None, 'mean', 0.0)"): (
        "is replaced by torch.nn.functional.cross_entropy with other default values"
    ),
}


@pytest.fixture(scope="module")
def faults() -> dict[str, list[Any]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(list(CASES))], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}.{case[1]}")
def test_a_patch_is_named(case: tuple[str, str, str], faults: dict[str, list[Any]]) -> None:
    owner, name, value = case
    message = faults[f"{owner}.{name} = {value}"][0]
    assert message is not None and CASES[case] in message
    assert "train with transformers' Trainer" in message


def test_a_global_hook_is_named(faults: dict[str, list[Any]]) -> None:
    assert "torch.nn.modules.module has a global forward hook, __main__.own" in faults["hook"][0]
    assert "call remove() of its handle" in faults["hook"][0]


def test_nothing_else_is_refused_and_nothing_imported(faults: dict[str, list[Any]]) -> None:
    assert faults[""] == [None, None]
    assert faults["imported"] == [False]
    assert faults["torch.load"] == [None]
