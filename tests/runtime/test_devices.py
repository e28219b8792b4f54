"""Devices: what a run asks of torch, and which GPUs find kernels in a build."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.doctor.check import ProblemError
from fastsft.doctor.machine import check_gpus
from fastsft.runtime.devices import _check_local_rank, choose_device, missing_kernels, use_device


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The devices that were made current, none of which need exist."""
    devices: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    return devices


@pytest.mark.parametrize("wanted", [False, True])
def test_full_determinism_reaches_torch(wanted: bool, chosen: list[object]) -> None:
    tf32 = torch.backends.cuda.matmul.allow_tf32
    try:
        use_device("cuda:1", False, wanted)
        assert torch.are_deterministic_algorithms_enabled() == wanted
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.backends.cuda.matmul.allow_tf32 = tf32
    assert chosen == ["cuda:1"]


def test_the_cpu_needs_no_choice(chosen: list[object]) -> None:
    use_device("cpu", True, True)
    assert not chosen and not torch.are_deterministic_algorithms_enabled()


def test_the_flag_is_off_unless_given() -> None:
    assert not TrainingArguments(output_dir="out", use_cpu=True).full_determinism


def test_ranks_that_do_not_know_their_gpu_are_refused() -> None:
    message = "LOCAL_RANK: expected the number of this rank on its machine, which has 4 GPUs, got nothing"
    with pytest.raises(ValueError, match=message):
        _check_local_rank(2, 4, {"RANK": "1", "WORLD_SIZE": "2"})
    for env in (
        {"RANK": "1", "LOCAL_RANK": "1"},
        {"SLURM_PROCID": "1"},
        {"RANK": "1", "LOCAL_WORLD_SIZE": "1"},
    ):
        _check_local_rank(2, 4, env)
    _check_local_rank(2, 1, {"RANK": "1"})
    _check_local_rank(1, 4, {"RANK": "0"})


@pytest.mark.parametrize(("architectures", "capability", "found"), [
    ("90", (9, 0), True), ("90", (12, 0), True), ("90", (8, 9), False), ("90", (8, 0), False),
    ("80", (8, 6), True), ("80", (9, 0), True), ("86", (8, 0), False), ("86", (8, 9), True),
    ("80,90", (8, 9), True), ("80,90", (7, 5), False), ("90-real", (12, 0), False), ("90-real", (9, 0), True),
    ("80-virtual", (8, 6), True), ("80-virtual", (7, 5), False), ("90a", (9, 0), True),
    ("90a", (10, 0), False), ("100", (10, 3), True), ("120", (10, 0), False),
])  # fmt: skip
def test_kernels_of_a_build(architectures: str, capability: tuple[int, int], found: bool) -> None:
    problem = missing_kernels(capability, architectures)
    assert (problem is None) == found
    if problem:
        assert f"got {capability[0]}{capability[1]}; build it for this GPU" in problem


class Properties:
    """The properties of an A100."""

    name, major, minor, total_memory = "A100", 8, 0, 80 << 30


def test_a_gpu_without_kernels_is_found_before_data_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {
        "is_available": True, "device_count": 1, "get_device_capability": (8, 0), "get_device_name": "A100",
        "get_device_properties": Properties(),
    }  # fmt: skip
    for name, value in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(_C, "with_cuda", True)
    monkeypatch.setattr(_C, "cuda_architectures", "90")
    with pytest.raises(ValueError, match=r"A100: expected a GPU of an architecture .*90.*got 80; build it"):
        choose_device(use_cpu=False)
    with pytest.raises(ProblemError, match="A100: expected a GPU"):
        check_gpus()
    monkeypatch.setattr(_C, "cuda_architectures", "80,90")
    assert choose_device(use_cpu=False) == "cuda:0" and check_gpus() == "A100 (80 GiB)"
