"""What loading the native core sets for the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fastsft.runtime.imports import KEPT_PRODUCTS

PROGRAM = """
import ctypes, os, sys
import torch
if sys.argv[1] == "with":
    from fastsft import _C
print(*(os.environ.get(name) for name in sys.argv[2:]))

def resident():
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

weight = torch.ones(48, 64).to_mkldnn()
def multiply(tokens):
    torch.ops.aten.mkldnn_linear(torch.ones(tokens, 64).to_mkldnn(), weight)

multiply(1)
before = resident()
for tokens in range(2, 902):
    multiply(tokens)
print(resident() - before)
"""


def started(core: str, **variables: str) -> tuple[str, int]:
    """Bounds that a process has, and bytes by which 900 products of different sizes make it grow."""
    environment = {name: value for name, value in os.environ.items() if name not in KEPT_PRODUCTS}
    command = [sys.executable, "-c", PROGRAM, core, *KEPT_PRODUCTS]
    done = subprocess.run(
        command, env={**environment, **variables}, capture_output=True, text=True, check=True
    )
    bounds, grown = done.stdout.splitlines()
    return bounds, int(grown)


def test_products_of_many_sizes_keep_little_memory() -> None:
    unbounded = started("without")
    bounded = started("with")
    assert (unbounded[0], bounded[0]) == ("None None", " ".join(KEPT_PRODUCTS.values()))
    assert bounded[1] < unbounded[1] / 3


def test_bounds_of_the_environment_stay() -> None:
    own = dict.fromkeys(KEPT_PRODUCTS, "1024")
    bounds, grown = started("with", **own)
    assert bounds == "1024 1024"
    assert grown > 3 * started("with")[1]


@pytest.mark.parametrize("name", KEPT_PRODUCTS)
def test_each_bound_is_set_by_itself(name: str) -> None:
    bounds, _ = started("with", **{name: "7"})
    assert bounds.split() == ["7" if each == name else value for each, value in KEPT_PRODUCTS.items()]
