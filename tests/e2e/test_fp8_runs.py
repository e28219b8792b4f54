"""`--fp8`: runs whose weights stay in 8 bits have the bits of runs that quantise them for each product."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from warm_ranks import WarmRanks, losses, weights_digest

FLAGS = {
    "bf16": True, "fp8": "rowwise", "max_steps": 4, "save_steps": 2, "logging_steps": 1,
    "lr_scheduler_type": "constant",
}  # fmt: skip
LORA = {"lora": True, "lora_r": 4}


@pytest.fixture(scope="module")
def model(short: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model with linear layers whose sizes are multiples of 16."""
    folder = tmp_path_factory.mktemp("wide") / "model"
    shutil.copytree(short["model_name_or_path"], folder)
    given = json.loads((folder / "config.json").read_text())
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1}
    torch.manual_seed(0)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    config = LlamaConfig(**{**given, **sizes, "head_dim": 16})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("ranks", "more"),
    [(1, {}), (2, {"fsdp": "shard_grad_op"}), (2, LORA)],
    ids=["alone", "shard_grad_op", "lora on two ranks"],
)
def test_kept_weights_change_no_bits(
    warm: WarmRanks, short: dict[str, Any], model: Path, tmp_path: Path, ranks: int, more: dict[str, Any]
) -> None:
    flags = {**short, **FLAGS, **more, "model_name_or_path": str(model)}
    text = warm.train({**flags, "keep_fp8_weights": True}, tmp_path / "kept", ranks)
    assert "weights kept in 8 bits" in " ".join(text.split())
    text = warm.train(flags, tmp_path / "made", ranks)  # on a CPU they are kept only if asked for
    assert "kept in 8 bits" not in " ".join(text.split())
    assert losses(tmp_path / "kept") == losses(tmp_path / "made")
    assert weights_digest(tmp_path / "kept") == weights_digest(tmp_path / "made")


def test_a_resumed_run_need_not_keep_them(
    warm: WarmRanks, short: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    flags = {**short, **FLAGS, "model_name_or_path": str(model)}
    kept = {**flags, "keep_fp8_weights": True}
    warm.train(kept, tmp_path / "whole")
    warm.train({**kept, "max_steps": 2}, tmp_path / "parts")
    assert "resumed from" in warm.train(flags, tmp_path / "parts")
    assert weights_digest(tmp_path / "parts") == weights_digest(tmp_path / "whole")
