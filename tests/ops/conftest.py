"""Tests of CUDA ops run on a GPU and, kernel by kernel, on the CPU."""

from __future__ import annotations

from collections import defaultdict

import pytest

from cuda_on_cpu import build
from cuda_on_cpu.emulation import Order
from device_ops import TWO_ORDERS, OpDevice, gpu, kernels_on_cpu

ON_CPU = "kernels on the CPU"
# Of each test's cases every seventh runs on the CPU in the whole suite, the others under `chaos` and there in
# every order of threads. Seven shares no factor with the numbers of values that cases are made of.
QUICK = 7
LONG = ("test_many_chunks", "520-32000")


@pytest.fixture(params=[pytest.param("cuda", marks=pytest.mark.cuda), ON_CPU])
def device(request: pytest.FixtureRequest) -> OpDevice:
    """Where a test's op runs."""
    if request.param != ON_CPU:
        return gpu()
    if reason := build.missing():
        pytest.skip(reason)
    return kernels_on_cpu(tuple(Order) if request.node.get_closest_marker("chaos") else TWO_ORDERS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is long on the CPU."""
    seen: defaultdict[str, int] = defaultdict(int)
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is None or callspec.params.get("device") != ON_CPU:
            continue
        test = item.nodeid.partition("[")[0]
        if seen[test] % QUICK or any(word in item.name for word in LONG):
            item.add_marker(pytest.mark.chaos)
        seen[test] += 1
