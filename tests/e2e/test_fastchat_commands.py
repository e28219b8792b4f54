"""FastChat's own command lines and DeepSpeed files, word for word but for paths, on a tiny model."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from deepspeed_files import STAGE_2, STAGE_3
from warm_ranks import WarmRanks, losses

LAYER = "--fsdp_transformer_layer_cls_to_wrap 'LlamaDecoderLayer'"
RECIPE = """--weight_decay 0. --lr_scheduler_type "cosine" --logging_steps 1 --tf32 True
    --model_max_length 2048 --gradient_checkpointing True --lazy_preprocess True"""
COMMANDS = {
    # scripts/train_vicuna_7b.sh: it asks for evaluation, and gives no data for it.
    "train_vicuna_7b.sh": f"""--bf16 True --num_train_epochs 3 --per_device_train_batch_size 2
        --per_device_eval_batch_size 16 --gradient_accumulation_steps 16 --evaluation_strategy "steps"
        --eval_steps 1500 --save_strategy "steps" --save_steps 1500 --save_total_limit 8
        --learning_rate 2e-5 --warmup_ratio 0.04 --fsdp "full_shard auto_wrap" {LAYER} {RECIPE}""",
    "README": f"""--bf16 True --num_train_epochs 3 --per_device_train_batch_size 2
        --per_device_eval_batch_size 2 --gradient_accumulation_steps 16 --evaluation_strategy "no"
        --save_strategy "steps" --save_steps 1200 --save_total_limit 10 --learning_rate 2e-5
        --warmup_ratio 0.03 --fsdp "full_shard auto_wrap" {LAYER} {RECIPE}""",
    "train": f"""--num_train_epochs 3 --per_device_train_batch_size 4 --gradient_accumulation_steps 8
        --learning_rate 2e-5 --model_max_length 2048 --bf16 True --fsdp "full_shard auto_wrap" {LAYER}
        --lazy_preprocess True --save_strategy steps --save_steps 500""",
    "train_mem": """--bf16 True --fsdp "full_shard auto_wrap" """,
}
# Optimizer steps of 50 conversations, by ranks.
STEPS = {
    "train_vicuna_7b.sh": {1: 6, 2: 3}, "README": {1: 6, 2: 3}, "train": {1: 6, 2: 3},
    "train_mem": {1: 21, 2: 12},
}  # fmt: skip
SHORT_FORM = {("train_vicuna_7b.sh", 2), ("train", 1)}


def flags_of(line: str) -> dict[str, str]:
    words = shlex.split(line)
    paths = {"model_name_or_path": "model_untied", "data_path": "data/first50.json"}
    pairs = zip(words[::2], words[1::2], strict=True)
    return {**paths, **{name.removeprefix("--"): value for name, value in pairs}}


CASES = [
    pytest.param(
        name, ranks, marks=() if (name, ranks) in SHORT_FORM else pytest.mark.chaos, id=f"{name}-{ranks}"
    )
    for name in COMMANDS
    for ranks in (1, 2)
]


@pytest.mark.parametrize(("name", "ranks"), CASES)
def test_the_command_trains_and_saves(warm: WarmRanks, tmp_path: Path, name: str, ranks: int) -> None:
    run = warm.start(flags_of(COMMANDS[name]), tmp_path, ranks)
    run.finish(120)
    found = losses(tmp_path)
    steps = STEPS[name][ranks]
    logged = found if "--logging_steps 1 " in COMMANDS[name] else {}
    assert len(logged) in (0, steps)
    state = json.loads((tmp_path / "trainer_state.json").read_text())
    assert state["global_step"] == state["max_steps"] == steps
    assert (tmp_path / f"checkpoint-{steps}" / "manifest.json").is_file()
    AutoModelForCausalLM.from_pretrained(tmp_path)
    if name == "train_vicuna_7b.sh":
        assert "--eval_strategy steps has no --eval_data_path or --eval_split" in run.text(name="err")
    assert not [entry for entry in state["log_history"] if "eval_loss" in entry]


@pytest.mark.variants("[s3]")
@pytest.mark.parametrize("file", [STAGE_2, STAGE_3], ids=["s2", "s3"])
def test_deepspeed_files_train_as_their_stage_does(
    warm: WarmRanks, tmp_path: Path, file: dict[str, Any]
) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(file))
    flags = {
        "model_name_or_path": "model_untied", "data_path": "data/first50.json", "bf16": True, "max_steps": 2,
        "per_device_train_batch_size": 2, "logging_steps": 1, "model_max_length": 256, "save_strategy": "no",
        "plot_loss": False,
    }  # fmt: skip
    stage = {2: "shard_grad_op", 3: "full_shard"}[file["zero_optimization"]["stage"]]
    runs = [
        warm.start({**flags, "deepspeed": tmp_path / "ds.json"}, tmp_path / "ds", 2),
        warm.start({**flags, "fsdp": f"{stage} offload"}, tmp_path / "fsdp", 2),
    ]
    page = " ".join(runs[0].finish(120).split())
    assert f"2 ranks, {stage}, bfloat16 over fp32 weights, optimizer state on the host" in page
    runs[1].finish(120)
    assert losses(tmp_path / "ds") == losses(tmp_path / "fsdp") and len(losses(tmp_path / "ds")) == 2
    # stage3_gather_16bit_weights_on_model_save chooses the type of the saved weights.
    wanted = torch.bfloat16 if stage == "full_shard" else torch.float32
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "ds", dtype="auto").dtype == wanted
