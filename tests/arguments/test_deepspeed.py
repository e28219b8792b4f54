"""--deepspeed: files of FastChat and of other recipes become settings; contradictions are named."""

import copy
import json
import math

import pytest

from deepspeed_files import STAGE_2, STAGE_3
from fastsft import notices
from fastsft.arguments import TrainingArguments
from fastsft.arguments.deepspeed import check_lengths
from fastsft.training.schedule import DeepSpeedWarmup, schedule_of

AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}
ADAMW = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}
WARMUP = {
    "type": "WarmupDecayLR",
    "params": {
        "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto",
        "total_num_steps": "auto",
    },
}  # fmt: skip


def arguments(config, **flags):
    return TrainingArguments("out", use_cpu=True, deepspeed=config, **{"bf16": True, **flags})


@pytest.mark.parametrize(
    ("config", "strategy", "offload", "save_dtype"),
    [
        (STAGE_3, "full_shard", True, "bfloat16"),
        (STAGE_2, "shard_grad_op", True, "auto"),
        ({**AUTO, "zero_optimization": {"stage": 1}}, "shard_grad_op", False, "auto"),
        ({**AUTO, "zero_optimization": {"stage": 0}}, "no_shard", False, "auto"),
        (AUTO, "no_shard", False, "auto"),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "none"}}},
            "full_shard",
            False,
            "auto",
        ),
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, "shard_grad_op", True, "auto"),
        ({"bf16": {"enabled": True}, "optimizer": ADAMW, "scheduler": WARMUP}, "no_shard", False, "auto"),
    ],
)
def test_stages_become_strategies(config, strategy, offload, save_dtype, tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(config))
    for given in (copy.deepcopy(config), json.dumps(config), str(tmp_path / "ds.json")):
        args = arguments(given)
        assert (args.sharding_strategy, args.offload, args.save_dtype) == (strategy, offload, save_dtype)
        assert args.deepspeed == given and args.fsdp == []
    assert TrainingArguments("out", use_cpu=True).deepspeed_plan is None


def test_what_has_no_effect_is_named(caplog, monkeypatch):
    monkeypatch.setattr(notices, "_said", set())
    arguments(STAGE_3)
    named = [record.message for record in caplog.records if "no effect" in record.message]
    assert len(named) == 1 and "zero_optimization.overlap_comm" in named[0]
    assert any("masters and moments" in record.message for record in caplog.records)


REFUSED = [
    ({"fp16": {"enabled": True}}, "with fp16 or amp enabled"),
    ({"amp": {"enabled": True}}, "with fp16 or amp enabled"),
    ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}, "device nvme"),
    ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "offload_param.device nvme"),
    ({"zero_optimization": {"stage": 4}}, "expected 0, 1, 2 or 3, got 4"),
    ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "zero_quantized_weights"),
    ({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}, "zero_hpz_partition_size"),
    ({"zero_optimization": {"stage": 3, "new_key": 1}}, r"zero_optimization\.new_key"),
    ({"compression_training": {}}, "section compression_training"),
    ({"pipeline": {}}, "section pipeline"),
    ({"tensor_parallel": {"autotp_size": 2}}, "section tensor_parallel"),
    ({"curriculum_learning": {}}, "section curriculum_learning"),
    ({"optimizer": {"type": "Lamb"}}, "optimizer.type Lamb"),
    ({"optimizer": {"type": "AdamW", "params": {"lr": "auto", "amsgrad": True}}}, "amsgrad"),
    ({"scheduler": {"type": "OneCycle"}}, "scheduler.type OneCycle"),
    ({"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": "auto"}}}, "has no total_num_steps"),
    ({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cosine"}}}, "log or linear"),
    ({"scheduler": {"type": "WarmupDecayLR", "params": {}}}, "needs total_num_steps"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED)
def test_refused(config, message):
    with pytest.raises(ValueError, match=message):
        arguments(config)


@pytest.mark.parametrize("precision", [{}, {"bf16": {"enabled": False}}])
def test_a_file_without_a_format_means_fp16(precision):
    with pytest.raises(ValueError, match="DeepSpeed means fp16"):
        arguments({**AUTO, **precision}, bf16=False)
    assert arguments({**AUTO, "fp16": {"enabled": False}}, bf16=False).deepspeed_plan
    assert arguments({**AUTO, "fp16": {"enabled": "auto"}}, bf16=False).deepspeed_plan


def test_a_format_that_contradicts_the_flag():
    with pytest.raises(ValueError, match=r"bf16\.enabled is true, but --bf16 is False"):
        arguments({"bf16": {"enabled": True}}, bf16=False)
    with pytest.raises(ValueError, match=r"bf16\.enabled is false, but --bf16 is True"):
        arguments({"bf16": {"enabled": False}, "fp16": {"enabled": False}})


MISMATCHES = [
    ({"train_micro_batch_size_per_gpu": 4}, "train_micro_batch_size_per_gpu is 4, but per_device_train"),
    (
        {"gradient_accumulation_steps": 3},
        "is 3, but gradient_accumulation_steps is 2",
    ),
    ({"train_batch_size": 100}, "train_batch_size is 100, but .* is 16"),
    ({"gradient_clipping": 0.5}, r"gradient_clipping is 0\.5, but max_grad_norm is 1\.0"),
    ({"optimizer": {"type": "AdamW", "params": {**ADAMW["params"], "lr": 1e-3}}}, r"params\.lr is 0\.001"),
    ({"optimizer": {"type": "AdamW", "params": {}}}, r"lr is 0\.001, but learning_rate is 5e-05"),
    (
        {"optimizer": {"type": "Adam", "params": {**ADAMW["params"], "betas": [0.9, 0.95]}}},
        "adam_beta1, adam_beta2",
    ),
    ({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1.0}}}, r"warmup_max_lr is 1\.0"),
]


@pytest.mark.parametrize(("config", "message"), MISMATCHES)
def test_values_must_equal_the_flags(config, message):
    with pytest.raises(ValueError, match=message):
        arguments(config, gradient_accumulation_steps=2)


def test_all_mismatches_are_listed_at_once():
    with pytest.raises(ValueError, match="contradict the flags") as error:
        arguments({"train_batch_size": 1, "gradient_clipping": 9, "gradient_accumulation_steps": 7})
    assert str(error.value).count("\n- ") == 3


def test_equal_values_pass():
    params = {"lr": 5e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
    arguments({
        "train_batch_size": 16, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": params},
    }, gradient_accumulation_steps=2)  # fmt: skip


def test_sharding_is_chosen_once():
    with pytest.raises(ValueError, match="both choose the sharding"):
        arguments(STAGE_2, fsdp="full_shard")


def test_missing_file():
    with pytest.raises(ValueError, match="no such file"):
        arguments("nowhere.json")


def test_lengths_are_checked_when_the_run_is_known():
    config = copy.deepcopy(WARMUP)
    config["params"] |= {"total_num_steps": 100, "warmup_num_steps": 10}
    plan = arguments({"scheduler": config}).deepspeed_plan
    check_lengths(plan, 100, 10)
    with pytest.raises(ValueError, match=r"total_num_steps is 100, but that of this run is 90"):
        check_lengths(plan, 90, 10)
    with pytest.raises(ValueError, match=r"warmup_num_steps is 10, but that of this run is 5"):
        schedule_of(arguments({"scheduler": config}, warmup_steps=5), 100)


def deepspeed_rates(kind, warmup, total, steps, warmup_type="log", least=0.0, peak=1e-3):
    """What a DeepSpeed scheduler gives when it is stepped after every update, in plain."""
    width = max(2, warmup)
    rates = [least]
    for index in range(steps - 1):
        if index < width:
            gamma = math.log(index + 1) / math.log(width) if warmup_type == "log" else index / width
        else:
            gamma = 1.0 if kind == "WarmupLR" else max(0.0, (total - index) / max(1.0, total - width))
        rates.append(least + (peak - least) * gamma)
    return rates


@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupDecayLR"])
@pytest.mark.parametrize("warmup_type", [None, "log", "linear"])
@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_schedules_of_deepspeed(kind, warmup_type, warmup):
    params = {"warmup_num_steps": "auto", "warmup_min_lr": 1e-5, "warmup_max_lr": "auto"}
    params |= {"total_num_steps": "auto"} if kind == "WarmupDecayLR" else {}
    params |= {"warmup_type": warmup_type} if warmup_type else {}
    args = arguments({"scheduler": {"type": kind, "params": params}}, learning_rate=1e-3, warmup_steps=warmup)
    schedule = schedule_of(args, 20)
    assert isinstance(schedule, DeepSpeedWarmup)
    expected = deepspeed_rates(kind, warmup, 20, 23, warmup_type or "log", least=1e-5)
    assert [schedule.rate(step) for step in range(23)] == pytest.approx(expected, rel=1e-12)
