"""The fake device notices a missing wait, a wrong stream, memory that is freed too early, and wrong calls."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from fake_device.running import FakeDevice

FakeDevices = Callable[..., FakeDevice]

PRELUDE = """
import torch
main, side = torch.cuda.current_stream(), torch.cuda.Stream()
a = torch.ones(1000, device="cuda")
side.wait_stream(main)
with torch.cuda.stream(side):
    b = a * 2
"""
RIGHT = "main.wait_stream(side); c = b + 1; print(c.sum().item())"
PLANTED = {
    "a missing wait": "c = b + 1; print(c.sum().item())",
    "a wrong stream": "main.wait_stream(torch.cuda.Stream()); c = b + 1; print(c.sum().item())",
    "the host reads too early": """
host = torch.empty(1000, pin_memory=True)
main.wait_stream(side)
host.copy_(b, non_blocking=True)
with torch.cuda.stream(side):
    host2 = b.fill_(7)
""",
    "memory freed while another stream uses it": """
with torch.cuda.stream(side):
    e = a * 5
del a
z = torch.zeros(1000, device="cuda")
""",
}


def run(device: FakeDevice, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"{PRELUDE}{program}\ntorch.cuda.synchronize()"],
        env=device.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_right_program_has_no_race(fake_device: FakeDevices) -> None:
    device = fake_device(schedule="lazy", races=True)
    assert float(run(device, RIGHT)) == 3000
    device.check()


def test_recorded_streams_are_waited_for(fake_device: FakeDevices) -> None:
    device = fake_device(schedule="lazy", races=True)
    program = PLANTED["memory freed while another stream uses it"]
    run(device, program.replace("del a", "a.record_stream(side)\ndel a"))
    device.check()


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_races(name: str, fake_device: FakeDevices) -> None:
    device = fake_device(schedule="lazy", races=True)
    run(device, PLANTED[name])
    assert device.lines("races")


def test_a_call_that_is_not_implemented_fails(fake_device: FakeDevices) -> None:
    device = fake_device()
    run(device, "\ntry:\n    torch.cuda.graph(torch.cuda.CUDAGraph()).__enter__()\nexcept Exception: pass")
    with pytest.raises(AssertionError, match="is not implemented"):
        device.check()
