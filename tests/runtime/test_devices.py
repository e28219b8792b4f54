"""What a run asks of torch for its device."""

from __future__ import annotations

import pytest
import torch

from fastsft.arguments import TrainingArguments
from fastsft.runtime.devices import _check_local_rank, use_device


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
    assert not TrainingArguments(output_dir="", use_cpu=True).full_determinism


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
