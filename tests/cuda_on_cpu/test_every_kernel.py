"""Every instance of every kernel of csrc/ops runs on the CPU and gives what the CPU's own op gives."""

from __future__ import annotations

import re

import pytest

from cuda_on_cpu import build
from cuda_on_cpu.emulation import Order, emulation
from cuda_on_cpu.mutations import mutants, rows_of
from cuda_on_cpu.sweep import calls
from device_ops import TWO_ORDERS, kernels_on_cpu

NAMES = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^{;]*?\)\s*)?(\w+)\s*\(")


@pytest.fixture(autouse=True, scope="module")
def needs_a_compiler() -> None:
    if reason := build.missing():
        pytest.skip(reason)


def kernels_in_sources() -> set[tuple[str, str]]:
    """File and name of each __global__ function."""
    files = {path: path.read_text() for path in (build.CSRC / "ops").rglob("*.cu")}
    found = {
        (str(path.relative_to(build.CSRC)), name)
        for path, text in files.items()
        for name in NAMES.findall(text)
    }
    for path, text in files.items():
        assert len(NAMES.findall(text)) == text.count("__global__"), f"{path}: a kernel was not recognised"
    return found


def sweep(orders: tuple[Order, ...]) -> int:
    device, count = kernels_on_cpu(orders), 0
    for call in calls():
        try:
            device.agree(call.op, *call.args, **call.options)
        except (AssertionError, RuntimeError) as error:
            raise AssertionError(f"{call.op} of {call.shapes}: {error}") from error
        count += 1
    return count


def test_every_instance_of_every_kernel_runs() -> None:
    cases = sweep(TWO_ORDERS)
    instances = emulation().instances()
    launched = [instance for instance in instances if instance.launches]
    print(f"{len(launched)} of {len(instances)} instances launched by {cases} calls")
    missed = [(i.file, i.name) for i in instances if not i.launches]
    assert missed == [], "not launched: add calls to tests/cuda_on_cpu/sweep.py"
    assert {(i.file, i.name.partition("<")[0]) for i in launched} == kernels_in_sources()


def test_the_page_has_a_row_for_each_barrier_and_shuffle() -> None:
    assert [mutant.name for mutant in mutants() if len(rows_of(mutant)) != 1] == []


@pytest.mark.chaos
def test_every_order_of_threads() -> None:
    assert sweep(tuple(Order)) > 0
