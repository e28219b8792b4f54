"""fastsft's TrainingArguments inside transformers' own Trainer: the losses of transformers' own class."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from e2e.both_modules import unrounded
from e2e.command_line import TRAINER
from fastsft.arguments import DataArguments, ModelArguments, TrainingArguments
from fastsft.train import SupervisedDataset

MODEL = TRAINER / "model_untied"


@pytest.fixture(scope="module")
def rows() -> SupervisedDataset:
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        MODEL, use_fast=False, model_max_length=48, padding_side="right"
    )
    tokenizer.pad_token = tokenizer.unk_token
    return SupervisedDataset(json.loads((TRAINER / "data" / "first48.json").read_text())[:16], tokenizer)


def losses(kind: Any, rows: SupervisedDataset, output: Path, **flags: Any) -> list[float]:
    transformers.set_seed(1)
    args = kind(
        str(output), use_cpu=True, max_steps=2, logging_steps=1, per_device_train_batch_size=4,
        learning_rate=2e-3, save_strategy="no", report_to="none", disable_tqdm=True, optim="adamw_torch",
        **flags,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL)
    with unrounded():
        trainer = transformers.Trainer(model, args=args, train_dataset=rows, eval_dataset=rows)
        trainer.train()
    return [
        entry[name] for entry in trainer.state.log_history for name in ("loss", "eval_loss") if name in entry
    ]


FLAGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine", "warmup_ratio": 0.5},
    "evaluation": {"eval_strategy": "epoch", "weight_decay": 0.1, "seed": 5},
    "checkpointing": {"gradient_checkpointing": True, "max_grad_norm": 0.1},
    "bf16": {"bf16": True},  # the last: transformers leaves it in the environment
}


@pytest.mark.variants("[plain]", "[bf16]")
@pytest.mark.parametrize("case", FLAGS)
def test_losses_are_those_of_its_own_arguments(
    case: str, rows: SupervisedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    ours = losses(TrainingArguments, rows, tmp_path / "ours", **FLAGS[case])
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    theirs = losses(transformers.TrainingArguments, rows, tmp_path / "theirs", **FLAGS[case])
    assert len(ours) >= 2 and ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize(
    "flags", [{"fsdp": "full_shard"}, {"deepspeed": {"bf16": {"enabled": True}}, "bf16": True}]
)
def test_sharding_that_only_our_trainer_reads_is_refused(flags: dict[str, Any], tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL)
    args = TrainingArguments(str(tmp_path), use_cpu=True, **flags)
    with pytest.raises(ValueError, match=rf"--{next(iter(flags))} is read by fastsft's Trainer alone"):
        transformers.Trainer(model, args=args)


def test_every_attribute_is_there() -> None:
    theirs = transformers.TrainingArguments("out", use_cpu=True)
    ours = TrainingArguments("out", use_cpu=True)
    left_over = {"is_torch_greater_or_equal_than_2_8"}  # a name of the class body
    missing = {name for name in dir(theirs) if not name.startswith("__")} - set(dir(ours))
    assert missing == left_over
    assert (ours.framework, ours.default_optim, ours.deepspeed_plugin) == ("pt", "adamw_torch", None)
    assert set(ours._VALID_DICT_FIELDS) == set(theirs._VALID_DICT_FIELDS)
    assert ours.accelerator_config.to_dict() == theirs.accelerator_config.to_dict()
    assert copy.deepcopy(ours.accelerator_config).even_batches is True
    with pytest.raises(AttributeError, match="accelerator_config has no key 'other'"):
        _ = ours.accelerator_config.other
    values: dict[str, Any] = {"a": torch.float32, "b": {"c": torch.bfloat16}, "d": 1}
    ours._dict_dtype_to_str(values)
    assert values == {"a": "float32", "b": {"c": "bfloat16"}, "d": 1}


def test_the_device_is_one_of_torch() -> None:
    ours = TrainingArguments("out", use_cpu=True)
    assert isinstance(ours.device, torch.device) and ours.device == torch.device("cpu")
    assert (
        ours.distributed_state.device
        == ours.device
        == transformers.TrainingArguments("out", use_cpu=True).device
    )


def test_transformers_parser_reads_the_three_classes() -> None:
    parser = transformers.HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    words = ["--output_dir", "o", "--data_path", "d.json", "--bf16", "--use_cpu", "--learning_rate", "1e-4"]
    model, data, training = parser.parse_args_into_dataclasses(words)
    assert (data.data_path, training.bf16, training.learning_rate) == ("d.json", True, 1e-4)
    assert model.model_name_or_path == "facebook/opt-125m"
