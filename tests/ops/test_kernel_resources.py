"""No CUDA kernel takes more registers, stack or shared memory than the committed table says."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from kernel_resources import committed, grown, measured

CSRC = Path(__file__).resolve().parents[2] / "csrc"


def test_only_rare_kernels_spill() -> None:
    """Rows of more than 8,192 elements have blocks of over 512 threads, of over 16,384 four accesses each."""
    spilling = {name for (_, name), figures in committed().items() if figures[1]}
    rare = ("wide_backward_kernel<", "forward_kernel<true, __nv_bfloat16, 8, 4, 1024>")
    narrow = [name for name in spilling if not name.startswith(rare)]
    assert all(name.endswith(", 1024>") and name.startswith("backward_kernel<") for name in narrow), spilling


def test_the_table_has_every_kernel() -> None:
    names: dict[str, set[str]] = defaultdict(set)
    for file, name in committed():
        names[file].add(name.partition("<")[0])
    found = {str(path.relative_to(CSRC)): path.read_text().count("__global__") for path in CSRC.rglob("*.cu")}
    counts = {file: len(names[file]) for file in found} | {file: len(names[file]) for file in names}
    assert counts == found, "python scripts/kernel_resources.py --write"


def test_growth_is_seen() -> None:
    before = committed()
    key, figures = next(iter(before.items()))
    worse = {**before, key: (figures[0] + 1, *figures[1:])}
    assert grown(before, before) == []
    assert grown(worse, before) == [
        f"{' '.join(key)}: registers {figures[0] + 1}, the table says {figures[0]}"
    ]
    assert grown({}, {key: figures}) == [f"{' '.join(key)}: only in the table"]


@pytest.mark.chaos
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_kernels_take_what_the_table_says() -> None:
    assert grown(measured(), committed()) == []
