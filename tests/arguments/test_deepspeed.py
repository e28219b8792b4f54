"""--deepspeed: files of FastChat and of other recipes become settings; contradictions are named."""

import copy
import json
import math

import pytest

from deepspeed_files import STAGE_2, STAGE_3
from fastsft.arguments import TrainingArguments
from fastsft.arguments.resolve.deepspeed import check_lengths
from fastsft.runtime import messages as notices
from fastsft.trainer.schedule import DeepSpeedWarmup, schedule_of

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


def test_fp16_goes_with_files_that_leave_it_to_the_flag():
    assert arguments({**AUTO, "fp16": {"enabled": False}}, bf16=False, fp16=True).deepspeed_plan
    with pytest.raises(ValueError, match="DeepSpeed's loss scale goes by other rules"):
        arguments({**AUTO, "fp16": {"enabled": "auto"}}, bf16=False, fp16=True)


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


# LLaVA's scripts/zero3_offload.json, as far as its spellings go; DeepSpeed reads both of each.
SECOND_NAMES = {
    "stage": 3,
    "offload_optimizer": {"device": "cpu"},
    "prefetch_bucket_size": "auto",
    "param_persistence_threshold": "auto",
    "model_persistence_threshold": 1e9,
    "max_live_parameters": 1e9,
    "max_reuse_distance": 1e9,
    "module_granularity_threshold": 0,
    "use_all_reduce_for_fetch_params": False,
    "allgather_sequential": False,
}


@pytest.mark.parametrize(
    "name",
    [
        "gather_16bit_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save",
        "stage3_gather_fp16_weights_on_model_save",
    ],
)  # fmt: skip
def test_second_and_old_names_of_zero(name):
    args = arguments({"zero_optimization": {**SECOND_NAMES, name: True}})
    assert (args.sharding_strategy, args.offload, args.save_dtype) == ("full_shard", True, "bfloat16")
    args = arguments({"zero_optimization": {**SECOND_NAMES, name: False}})
    assert args.save_dtype == "auto"


def test_two_spellings_must_agree():
    names = ("gather_16bit_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save")
    assert (
        arguments({"zero_optimization": {"stage": 3, **dict.fromkeys(names, True)}}).save_dtype == "bfloat16"
    )
    with pytest.raises(ValueError, match=r"save is False, and its other spelling, .*save, is True; give one"):
        arguments({"zero_optimization": {"stage": 3, names[1]: True, names[0]: False}})


@pytest.mark.parametrize(
    ("zero", "strategy", "offload"),
    [
        (True, "shard_grad_op", False),
        (False, "no_shard", False),
        ({"stage": 3, "cpu_offload_param": True}, "full_shard", True),
        ({"stage": 3, "offload_param": None, "offload_optimizer": "auto"}, "full_shard", False),
        ({"stage": "auto"}, "shard_grad_op", False),
        (
            {"stage": "auto", "overlap_comm": "auto", "reduce_bucket_size": "auto", "offload_optimizer": {
                "device": "auto", "nvme_path": "auto"}},
            "shard_grad_op", False,
        ),
        ({"stage": 3, "stage3_gather_16bit_weights_on_model_save": "auto"}, "full_shard", False),
    ],
)  # fmt: skip
def test_old_forms_and_auto(zero, strategy, offload):
    args = arguments({"zero_optimization": zero})
    assert (args.sharding_strategy, args.offload, args.save_dtype) == (strategy, offload, "auto")


def test_auto_is_what_accelerate_would_fill_in(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "cpu")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "true")
    zero = {
        "stage": "auto",
        "offload_optimizer": {"device": "auto"},
        "gather_16bit_weights_on_model_save": "auto",
    }
    args = arguments({"zero_optimization": zero})
    assert (args.sharding_strategy, args.offload, args.save_dtype) == ("full_shard", True, "bfloat16")


OFF = {"enabled": False, "anything": 1}


def test_sections_that_are_switched_off_are_left_out():
    names = (
        "elasticity", "autotuning", "curriculum_learning", "progressive_layer_drop", "hybrid_engine",
        "data_efficiency", "torch_autocast", "amp", "fp16",
    )  # fmt: skip
    assert arguments({**dict.fromkeys(names, OFF), "data_types": {"grad_accum_dtype": "fp32"}}).deepspeed_plan
    for name in names:
        with pytest.raises(ValueError, match=f"{name}"):
            arguments({name: {"enabled": True}})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"bf16": {"enabled": True, "bf16_optimizer_states": True}}, "use --optim_dtype bfloat16"),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "--master_dtype split"),
        ({"bf16": {"enabled": True, "other": 1}}, r"does not support bf16\.other"),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, "grad_accum_dtype bf16 .* --grad_dtype bfloat16"),
        ({"bfloat16": {"enabled": False}}, r"bf16\.enabled is false, but --bf16 is True"),
    ],
)
def test_formats_that_the_file_would_change(config, message):
    with pytest.raises(ValueError, match=message):
        arguments(config)


def test_bfloat16_is_the_old_name_of_bf16():
    assert arguments({"bfloat16": {"enabled": "auto"}}).deepspeed_plan
    assert arguments({"bf16": None, "bfloat16": {"enabled": True, "loss_scale": 0}}).deepspeed_plan


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
