"""The fake device notices a missing wait, a wrong stream, memory that is freed too early, and wrong calls."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from fake_device.running import FakeDevice, run_program

FakeDevices = Callable[..., FakeDevice]

PRELUDE = """
import torch
main, side = torch.cuda.current_stream(), torch.cuda.Stream()
a = torch.ones(1000, device="cuda")
side.wait_stream(main)
with torch.cuda.stream(side):
    b = a * 2
"""
FREED = """
with torch.cuda.stream(side):
    e = a * 5
del a
z = torch.zeros(1000, device="cuda")
"""
RIGHT = {
    "a wait": "main.wait_stream(side); c = b + 1; assert c.sum().item() == 3000",
    "a recorded stream": FREED.replace("del a", "a.record_stream(side)\ndel a"),
}
PLANTED = {
    "a missing wait": "c = b + 1",
    "a wrong stream": "main.wait_stream(torch.cuda.Stream()); c = b + 1",
    "the host reads too early": """
host = torch.empty(1000, pin_memory=True)
main.wait_stream(side)
host.copy_(b, non_blocking=True)
with torch.cuda.stream(side):
    host2 = b.fill_(7)
""",
    "memory freed while another stream uses it": FREED,
}


def races(device: FakeDevice, programs: dict[str, str]) -> dict[str, int]:
    """Run the programs, each behind PRELUDE; return how many races each has."""
    words = json.dumps({name: f"{PRELUDE}{program}" for name, program in programs.items()})
    (found,) = run_program(device, "planted_programs", words)
    assert isinstance(found, dict)
    return found


def test_planted_faults_are_races(fake_device: FakeDevices) -> None:
    found = races(fake_device(schedule="lazy", races=True), {**RIGHT, **PLANTED})
    assert {name for name, count in found.items() if count} == set(PLANTED)


def test_a_call_that_is_not_implemented_fails(fake_device: FakeDevices) -> None:
    device = fake_device()
    graph = "\ntry:\n    torch.cuda.graph(torch.cuda.CUDAGraph()).__enter__()\nexcept Exception: pass"
    races(device, {"a graph": graph})
    with pytest.raises(AssertionError, match="is not implemented"):
        device.check()
