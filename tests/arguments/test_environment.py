"""What launchers put into the environment: places of ranks, and accelerate's wishes."""

import subprocess
import sys

import pytest

from fastsft.arguments import TrainingArguments
from fastsft.arguments.resolve.device import check_environment


def arguments(**flags):
    return TrainingArguments("out", use_cpu=flags.pop("use_cpu", True), **flags)


AGREES = [
    ({}, {}),
    ({"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "no"}, {}),
    ({"ACCELERATE_USE_FSDP": "true"}, {"fsdp": "full_shard"}),
    ({"ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": "2"}, {"fsdp": "shard_grad_op"}),
    ({"ACCELERATE_USE_FSDP": "1", "FSDP_OFFLOAD_PARAMS": "true"}, {"fsdp": "full_shard offload"}),
    ({"ACCELERATE_USE_FSDP": "false"}, {}),
    ({"ACCELERATE_USE_CPU": "true"}, {}),
    ({"ACCELERATE_MIXED_PRECISION": "bf16"}, {"bf16": True}),
    ({"ACCELERATE_MIXED_PRECISION": "fp16"}, {"fp16": True}),
    ({"ACCELERATE_USE_DEEPSPEED": "true"}, {"bf16": True, "deepspeed": {"zero_optimization": {"stage": 2}}}),
]
CONTRADICTS = [
    ({"ACCELERATE_USE_FSDP": "true"}, {}, r"ACCELERATE_USE_FSDP.*add --fsdp full_shard"),
    ({"ACCELERATE_USE_DEEPSPEED": "true"}, {}, r"ACCELERATE_USE_DEEPSPEED.*add --deepspeed FILE"),
    ({"ACCELERATE_MIXED_PRECISION": "bf16"}, {}, "add --bf16 True.*earlier TrainingArguments of the kernel"),
    ({"ACCELERATE_MIXED_PRECISION": "fp16"}, {}, "add --fp16 True"),
    ({"ACCELERATE_MIXED_PRECISION": "fp8"}, {"bf16": True}, "ACCELERATE_MIXED_PRECISION fp8"),
    ({"ACCELERATE_USE_MEGATRON_LM": "true"}, {}, "Megatron-LM"),
    ({"ACCELERATE_USE_TP": "true"}, {}, "tensor parallelism"),
    (
        {"ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": "FULL_SHARD"},
        {"fsdp": "shard_grad_op"},
        "FSDP_SHARDING_STRATEGY is FULL_SHARD, but --fsdp says shard_grad_op",
    ),
    ({"ACCELERATE_USE_FSDP": "true", "FSDP_OFFLOAD_PARAMS": "true"}, {"fsdp": "full_shard"}, "offload"),
]


@pytest.mark.parametrize(("env", "flags"), AGREES)
def test_agrees(env, flags):
    check_environment(arguments(**flags), -1, env)


@pytest.mark.parametrize(("env", "flags", "message"), CONTRADICTS)
def test_contradicts(env, flags, message):
    with pytest.raises(ValueError, match=message):
        check_environment(arguments(**flags), -1, env)


def test_local_rank_of_a_launcher():
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    check_environment(arguments(), 1, place)
    check_environment(arguments(), 1, {"SLURM_STEP_NUM_TASKS": "2"})
    check_environment(arguments(), 0, {})
    with pytest.raises(ValueError, match=r"--local_rank 1: RANK and WORLD_SIZE are not"):
        check_environment(arguments(), 1, {})


@pytest.mark.parametrize("flag", ["--local_rank=1", "--local-rank=1"])
def test_the_environment_wins_over_the_flag(flag, monkeypatch):
    from fastsft.arguments.parsing.parser import DataclassParser

    for name, value in {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    (args,) = DataclassParser(TrainingArguments).parse_args_into_dataclasses([flag, "--use_cpu"])
    assert (args.local_rank, args.process_index, args.world_size) == (1, 3, 4)


@pytest.mark.thorough
def test_a_program_is_told(monkeypatch):
    code = "from fastsft.arguments import TrainingArguments\nTrainingArguments('out', use_cpu=True)"
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "add --fsdp full_shard" in done.stderr
    # transformers' arguments write such variables themselves; then those of the start count.
    monkeypatch.delenv("ACCELERATE_USE_FSDP")
    code = "import os, transformers\nos.environ['ACCELERATE_USE_FSDP'] = 'true'\n" + code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_first_rank_of_every_node_saves(monkeypatch):
    for name, value in {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert arguments(save_on_each_node=True).should_save
    assert not arguments().should_save
