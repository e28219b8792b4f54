"""LoRA on several ranks: the curve of one rank, files for peft and transformers, the bits after SIGKILL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from e2e.command_line import TRAINER, tensors
from e2e.test_kills import Whole, trial
from small_model import PIECES
from warm_ranks import WarmRanks, losses

GLOBAL_BATCH = 24
ADAPTERS = {
    "lora": True, "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "lora_target_modules": "all-linear",
    "learning_rate": 1e-2,
}  # fmt: skip


def base_model(flags: dict[str, Any]) -> Any:
    return AutoModelForCausalLM.from_pretrained(TRAINER / flags["model_name_or_path"], dtype=torch.float32)


@pytest.fixture(scope="module")
def ends(warm: WarmRanks, flags: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What runs of 1 to 3 ranks leave, with one global batch."""
    folder = tmp_path_factory.mktemp("ends")
    for ranks in (1, 2, 3):
        more = {"fsdp": "full_shard"} if ranks > 1 else {}
        given = {
            **flags, **ADAPTERS, "num_train_epochs": 2, "save_strategy": "no", "save_merged": ranks == 2,
            "per_device_train_batch_size": 1, "gradient_accumulation_steps": GLOBAL_BATCH // ranks, **more,
        }  # fmt: skip
        warm.train(given, folder / str(ranks), ranks)
    return {ranks: folder / str(ranks) for ranks in (1, 2, 3)}


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_number_of_ranks_has_the_same_curve(ends: dict[int, Path], ranks: int) -> None:
    """With dropout: masks are those of the conversations, wherever they are."""
    assert losses(ends[ranks]) == pytest.approx(losses(ends[1]), rel=1e-6)
    adapters, expected = tensors(ends[ranks]), tensors(ends[1])
    assert adapters.keys() == expected.keys()
    for name, value in expected.items():
        assert (adapters[name] - value).norm() <= 1e-4 * value.norm(), name


def test_an_adapter_of_two_ranks_opens_elsewhere(ends: dict[int, Path], flags: dict[str, Any]) -> None:
    """In peft with the logits of the adapter of one rank; merged in transformers as peft merges it."""
    ids = torch.randint(3, PIECES, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plain = base_model(flags)(ids).logits
        alone = PeftModel.from_pretrained(base_model(flags), ends[1])(ids).logits
        opened = PeftModel.from_pretrained(base_model(flags), ends[2])
        found = opened(ids).logits
        merged = opened.merge_and_unload()(ids).logits
        own = AutoModelForCausalLM.from_pretrained(ends[2] / "merged", dtype=torch.float32)(ids).logits
    assert (found - plain).norm() > 1e-2 * plain.norm()
    assert (found - alone).norm() <= 1e-5 * alone.norm()
    assert (own - merged).norm() <= 1e-5 * merged.norm()
    assert (own - found).norm() <= 1e-5 * found.norm()


@pytest.fixture(scope="module")
def whole(warm: WarmRanks, flags: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(warm, tmp_path_factory.mktemp("whole"), {**flags, **ADAPTERS})


@pytest.mark.thorough
@pytest.mark.parametrize(("ranks", "seed"), [(1, 21), (2, 22)])
def test_a_killed_run_ends_as_the_whole_one(
    warm: WarmRanks, whole: Whole, tmp_path: Path, ranks: int, seed: int
) -> None:
    """docs/spec/reliability.md, row R3."""
    assert trial(warm, whole, tmp_path, ranks, seed) == ""


@pytest.mark.thorough
def test_a_killed_run_in_4_bits_ends_as_the_whole_one(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path
) -> None:
    whole = Whole(warm, tmp_path / "whole", {**flags, **ADAPTERS, "q_lora": True})
    assert trial(warm, whole, tmp_path / "killed", 2, 23) == ""
