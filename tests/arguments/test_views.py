"""Derived attributes, dictionaries and settings by method, beside transformers' own class."""

import dataclasses
import json
import logging
from typing import Optional

import pytest
import torch
import transformers
from transformers.training_args import ParallelMode

from fastsft.arguments import TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.trainer.setup import use_log_level

SETS = [
    {},
    {"num_train_epochs": 1.5, "max_steps": 7, "warmup_ratio": 0.1, "logging_steps": 3.0, "save_steps": 0.25},
    {"eval_strategy": "steps", "eval_steps": 4, "logging_steps": 9, "metric_for_best_model": "accuracy"},
    {"eval_strategy": "epoch", "warmup_steps": 5, "per_device_train_batch_size": 3, "weight_decay": 0.1},
    {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": '{"min_lr": "0.5", "a": "true"}'},
    {"fsdp": "shard_grad_op auto_wrap", "seed": 3, "data_seed": 4, "log_level": "info", "run_name": "mine"},
    {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": '{"use_reentrant": "false", "n": "3"}'},
    {"hub_token": "secret", "hub_model_id": "a/b", "include_num_input_tokens_seen": True, "bf16": True},
    {"no_cuda": True, "logging_strategy": "no", "save_strategy": "epoch", "save_total_limit": 2},
    {"accelerator_config": {"split_batches": True, "non_blocking": True}, "dataloader_drop_last": True},
    {"push_to_hub_model_id": "m", "push_to_hub_organization": "o", "push_to_hub_token": "t"},
    {"warmup_steps": 3, "warmup_ratio": 0.5, "eval_delay": 2.0, "optim": "adamw_torch_fused"},
]
# On purpose: fsdp_config without keys of XLA, no tracker by default, the time in logging_dir, the bar.
DIFFERENT = {"fsdp_config", "report_to", "logging_dir", "disable_tqdm", "optim"}
PLAIN = [
    "world_size", "process_index", "local_process_index", "n_gpu", "_n_gpu", "train_batch_size",
    "eval_batch_size", "should_log", "should_save", "ddp_timeout_delta", "local_rank",
    "place_model_on_device",
]  # fmt: skip


def pair(flags):
    common = {"output_dir": "out", "use_cpu": True, **flags}
    return TrainingArguments(**common), transformers.TrainingArguments(**common)


@pytest.mark.parametrize("flags", SETS, ids=str)
def test_everything_that_scripts_read(flags):
    ours, theirs = pair(flags)
    mine, other = ours.to_dict(), theirs.to_dict()
    for name in sorted(set(mine) & set(other) - DIFFERENT):
        assert mine[name] == other[name], name
    assert set(other) <= set(mine)
    for name in PLAIN:
        assert getattr(ours, name) == getattr(theirs, name), name
    for steps in (1, 10, 37, 1000):
        assert ours.get_warmup_steps(steps) == theirs.get_warmup_steps(steps)
    assert ours.parallel_mode.value == "not_parallel" and theirs.parallel_mode in (
        ParallelMode.NOT_PARALLEL, ParallelMode.DISTRIBUTED,
    )  # fmt: skip
    assert torch.device(ours.device) == theirs.device and ours.device.type == theirs.device.type == "cpu"
    assert ours.device.index is None and torch.zeros(1).to(ours.device).device == theirs.device
    state, other_state = ours.distributed_state, theirs.distributed_state
    for name in ("num_processes", "process_index", "is_main_process", "is_local_main_process"):
        assert getattr(state, name) == getattr(other_state, name)
    with ours.main_process_first(desc="nothing"):
        pass


@pytest.mark.parametrize("flags", SETS, ids=str)
def test_text_forms(flags):
    ours, theirs = pair(flags)
    assert json.loads(ours.to_json_string()) == ours.to_dict()
    assert ours.to_json_string() == json.dumps(ours.to_dict(), indent=2)
    mine, other = ours.to_sanitized_dict(), theirs.to_sanitized_dict()
    assert mine["train_batch_size"] == other["train_batch_size"]
    assert {type(value) for value in mine.values()} <= {bool, int, float, str}
    for name in set(mine) & set(other) - DIFFERENT:
        assert mine[name] == other[name], name
    assert repr(ours) == str(ours) and str(ours).startswith("TrainingArguments(\naccelerator_config=")
    assert "secret" not in str(ours) and "secret" not in ours.to_json_string()
    assert "hub_token=<HUB_TOKEN>,\n" in str(ours) and "hub_token=<HUB_TOKEN>,\n" in str(theirs)


METHODS = [
    ("set_training", {"learning_rate": 1e-4, "batch_size": 32, "num_epochs": 2, "seed": 1}),
    ("set_evaluate", {"strategy": "steps", "steps": 100, "batch_size": 4, "delay": 3}),
    ("set_testing", {"batch_size": 2, "loss_only": True}),
    ("set_save", {"strategy": "steps", "steps": 100, "total_limit": 3}),
    ("set_logging", {"strategy": "steps", "steps": 100, "level": "info", "first_step": True}),
    ("set_optimizer", {"name": "adamw_torch", "beta1": 0.8, "epsilon": 1e-6, "weight_decay": 0.1}),
    ("set_lr_scheduler", {"name": "cosine", "warmup_ratio": 0.05, "max_steps": 9}),
    ("set_dataloader", {"train_batch_size": 16, "eval_batch_size": 64, "drop_last": True, "sampler_seed": 5}),
]


@pytest.mark.parametrize(("method", "options"), METHODS)
def test_set_methods(method, options):
    ours, theirs = pair({})
    for given in (options, {}):
        assert getattr(ours, method)(**given) is ours
        getattr(theirs, method)(**given)
        mine, other = ours.to_dict(), theirs.to_dict()
        # A delay of None is none; the CPU pins no memory, whatever is asked for.
        for name in sorted(set(mine) & set(other) - DIFFERENT - {"eval_delay", "dataloader_pin_memory"}):
            assert mine[name] == other[name], name


def test_set_methods_check_what_they_set():
    args = TrainingArguments("out", use_cpu=True, evaluation_strategy="epoch")
    assert args.set_evaluate(strategy="steps", steps=5).eval_strategy == "steps"
    for method, options, message in [
        ("set_optimizer", {"name": "lomo"}, "--optim lomo"),
        ("set_save", {"strategy": "steps", "steps": 0}, "positive value"),
        ("set_logging", {"strategy": "steps", "steps": 0}, "positive value"),
        ("set_training", {"batch_size": 0}, "at least 1"),
        ("set_dataloader", {"auto_find_batch_size": True}, "auto_find_batch_size"),
    ]:
        with pytest.raises(ValueError, match=message):
            getattr(TrainingArguments("out", use_cpu=True), method)(**options)


def test_members_of_enumerations_are_their_values():
    args = TrainingArguments(
        "out", use_cpu=True, save_strategy=transformers.trainer_utils.SaveStrategy.EPOCH,
        lr_scheduler_type=transformers.SchedulerType.COSINE,
        eval_strategy=transformers.trainer_utils.IntervalStrategy.NO,
    )  # fmt: skip
    assert (args.save_strategy, args.lr_scheduler_type, args.eval_strategy) == ("epoch", "cosine", "no")
    with pytest.raises(ValueError, match="--lr_scheduler_type: expected one of linear"):
        TrainingArguments("out", use_cpu=True, lr_scheduler_type="greedy")


# FastChat's pattern, with its spelling of types.
@dataclasses.dataclass
class ScriptArguments(TrainingArguments):
    cache_dir: Optional[str] = dataclasses.field(default=None)  # noqa: UP045
    optim: str = dataclasses.field(default="adamw_torch")
    model_max_length: int = dataclasses.field(
        default=1024, metadata={"help": "Maximum sequence length. Sequences will be right padded."}
    )
    mine: Optional[int] = None  # noqa: UP045


@pytest.mark.parametrize("parser", [transformers.HfArgumentParser, DataclassParser])
def test_subclass_as_fastchat_writes_it(parser):
    (args,) = parser((ScriptArguments,)).parse_args_into_dataclasses(
        ["--use_cpu", "--output_dir", "o", "--mine", "3", "--bf16", "True"]
    )
    assert (args.model_max_length, args.mine, args.bf16, args.output_dir) == (1024, 3, True, "o")
    assert args.token_budget == 8 * 1024
    with pytest.raises(ValueError, match="use --optim adamw_torch"):
        ScriptArguments("o", optim="lomo")
    assert next(field.name for field in dataclasses.fields(ScriptArguments)) == "output_dir"


def test_log_levels(monkeypatch):
    logger = logging.getLogger("fastsft")
    monkeypatch.setattr(logger, "level", logger.level)
    args = TrainingArguments("o", use_cpu=True, log_level="info", log_level_replica="error")
    assert args.get_process_log_level() == logging.INFO
    use_log_level(args)
    assert logger.level == logging.INFO
    use_log_level(TrainingArguments("o", use_cpu=True))  # passive
    assert logger.level == logging.INFO
    for name, value in {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert args.should_log and args.get_process_log_level() == logging.INFO  # first of its machine
    assert (
        args.set_logging(on_each_node=False, replica_level="error").get_process_log_level() == logging.ERROR
    )
    assert not args.should_save and args.parallel_mode.value == "distributed"


BEST = [
    ({"eval_strategy": "epoch", "save_strategy": "steps"}, "strategy to match"),
    ({"eval_strategy": "steps", "eval_steps": 4, "save_steps": 6}, "round multiple"),
    ({"eval_strategy": "steps", "eval_steps": 0.1, "save_steps": 6}, "share|mixing ratio"),
    ({"eval_strategy": "steps", "eval_steps": 0.1, "save_steps": 0.25}, "multiple"),
]


@pytest.mark.parametrize(("flags", "message"), BEST)
@pytest.mark.parametrize("kind", [TrainingArguments, transformers.TrainingArguments])
def test_the_best_model_must_have_been_saved(kind, flags, message):
    with pytest.raises(ValueError, match=message):
        kind("out", use_cpu=True, load_best_model_at_end=True, **flags)


WRONG = [
    ({"dataloader_prefetch_factor": 2}, "dataloader_prefetch_factor"),
    ({"torch_empty_cache_steps": 0}, "torch_empty_cache_steps"),
    ({"warmup_ratio": 2.0}, "warmup_ratio"),
    ({"fp16": True, "bf16": True}, "fp16"),
    ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "reduce_lr_on_plateau"),
    ({"fsdp": "full_shard shard_grad_op"}, "not compatible"),
]


@pytest.mark.parametrize(("flags", "message"), WRONG)
@pytest.mark.parametrize("kind", [TrainingArguments, transformers.TrainingArguments])
def test_wrong_as_with_the_original(kind, flags, message):
    with pytest.raises(ValueError, match=message):
        kind("out", use_cpu=True, **flags)
