"""Flags that are given with the values that they have without being given: given is given."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import transformers

from argument_outcomes import CLASSES, outcome_of
from fastsft.arguments import DataArguments, LoraArguments, TrainingArguments
from fastsft.arguments.from_transformers import as_arguments
from fastsft.arguments.given import given_fields
from fastsft.arguments.lora import LoraScriptArguments
from fastsft.arguments.parsing.call_arguments import read_arguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.cli import plan
from fastsft.data.data_module import refuse_label_flags
from fastsft.lora.attach import check_same_settings
from fastsft.lora.settings import LoraSettings
from fastsft.reporting.start_page import changed_arguments
from tiny_models import write_model

FASTCHATS = "--lora_r 8 --lora_alpha 16 --lora_dropout 0.05 --lora_target_modules q_proj v_proj"
WITHOUT_LORA = "expected with --lora True"
# Each flag at its default, and a part of what is said about it; None: nothing is, and nothing differs.
AT_DEFAULT: dict[str, str | None] = {
    "--lora_r 8": WITHOUT_LORA,
    "--lora_alpha 16": WITHOUT_LORA,
    "--lora_dropout 0.05": WITHOUT_LORA,
    "--lora_target_modules q_proj v_proj": WITHOUT_LORA,
    "--lora_bias none": WITHOUT_LORA,
    "--lora_weight_path ''": WITHOUT_LORA,
    "--q_lora False": WITHOUT_LORA,
    "--lora_rslora False": WITHOUT_LORA,
    "--save_merged False": WITHOUT_LORA,
    "--lora False --lora_r 8": "--lora False: --lora_r has no effect",
    "--lora False --lora_r 8 --q_lora True": "--lora False: --lora_r, --q_lora have no effect",
    f"--lora True {FASTCHATS}": None,
    "--evaluation_strategy steps --eval_strategy no": "give one of the two",
    "--group_by_length True --train_sampling_strategy random": "contradict each other; give one",
    "--group_by_length False --train_sampling_strategy group_by_length": "contradict each other; give one",
    "--adafactor True --optim adamw_torch": "give one of the two",
    "--no_cuda True --use_cpu False": "give one of the two",
    "--optim sgd --optim_dtype float32": "--optim_dtype float32 is about AdamW's moments",
    "--optim adamw_8bit --optim_dtype float32": "--optim_dtype float32 is about AdamW's moments",
    "--warmup_steps 0 --warmup_ratio 0.1": "--warmup_ratio 0.1 counts",
    "--optim sgd --adam_beta1 0.9": "--adam_beta1 0.9 has no effect",
    "--optim sgd --adam_beta2 0.999": "--adam_beta2 0.999 has no effect",
    "--optim adafactor --adam_epsilon 1e-8": "--adam_epsilon 1e-08 has no effect",
    "--save_strategy epoch --save_steps 500": "--save_steps 500 has no effect",
    "--logging_strategy epoch --logging_steps 500": "--logging_steps 500 has no effect",
    "--max_steps 9 --num_train_epochs 3": "--num_train_epochs 3 has no effect",
    "--eval_delay 0": "--eval_delay 0 has no effect",
    "--initial_loss_scale 65536": "--initial_loss_scale 65536 has no effect",
    "--loss_scale_window 2000": "--loss_scale_window 2000 has no effect",
    "--loss_spike_patience 3": "--loss_spike_patience 3 has no effect",
    "--max_nonfinite_skips 10": "--max_nonfinite_skips 10 has no effect",
    "--length_column_name length": "--length_column_name length has no effect",
    **dict.fromkeys(
        (
            "--lora False", "--learning_rate 5e-5", "--weight_decay 0", "--adam_beta1 0.9", "--adam_beta2 "
            "0.999",
            "--adam_epsilon 1e-8", "--max_grad_norm 1", "--lr_scheduler_type linear", "--warmup_ratio 0",
            "--warmup_steps 0", "--optim adamw_torch", "--label_smoothing_factor 0", "--num_train_epochs 3",
            "--max_steps -1", "--seed 42", "--per_device_train_batch_size 8", "--per_device_eval_batch_size "
            "8",
            "--gradient_accumulation_steps 1", "--model_max_length 512", "--loss_norm global_tokens",
            "--train_sampling_strategy random", "--group_by_length False", "--dataloader_drop_last False",
            "--save_strategy steps", "--save_steps 500", "--save_safetensors True", "--save_dtype auto",
            "--max_shard_size 5GB", "--save_mode auto", "--async_save True", "--save_patience 600",
            "--eval_strategy no", "--eval_loss baseline", "--load_best_model_at_end False", "--bf16 False",
            "--fp16 False", "--fsdp ''", "--recompute auto", "--optim_dtype float32", "--grad_dtype float32",
            "--logging_strategy steps", "--logging_steps 500", "--on_nonfinite stop", "--loss_spike_factor 0",
            "--mask_policy auto", "--train_turns all", "--max_dropped 0.05", "--overlong truncate",
            "--data_format auto", "--lazy_preprocess False", "--padding_side right", "--adafactor False",
        )
    ),
}  # fmt: skip
DERIVED = ("logging_dir",)  # with the time in its name


@pytest.mark.parametrize("line", AT_DEFAULT)
def test_a_flag_at_its_default(line: str) -> None:
    found, part = outcome_of(line), AT_DEFAULT[line]
    if part is not None:
        assert found.kind in ("refused", "told") and part in found.text, found
        return
    assert found.kind == "taken", found.text
    usual = outcome_of("--lora True" if "--lora True" in line else "").values
    assert {name: value for name, value in found.values.items() if name not in DERIVED} == {
        name: value for name, value in usual.items() if name not in DERIVED
    }


def test_there_are_enough_of_them() -> None:
    assert len(AT_DEFAULT) >= 80


def test_all_flags_of_lora_are_named_at_once() -> None:
    text = outcome_of(FASTCHATS).text
    assert text.startswith(
        "--lora_r, --lora_alpha, --lora_dropout, --lora_target_modules: expected with --lora True"
    )
    assert "add --lora True, or leave them out" in text


def by_yaml(folder: Path) -> Any:
    (folder / "a.yaml").write_text("lora_r: 8\nuse_cpu: true\n")
    return DataclassParser(CLASSES).parse_args_into_dataclasses(["--config", str(folder / "a.yaml")])


def by_json(folder: Path) -> Any:
    (folder / "a.json").write_text(json.dumps({"lora_r": 8, "use_cpu": True}))
    return DataclassParser(CLASSES).parse_args_into_dataclasses(["--config", str(folder / "a.json")])


def by_args_file(folder: Path) -> Any:
    (folder / "a.args").write_text("--lora_r 8 --use_cpu")
    return DataclassParser(CLASSES).parse_args_into_dataclasses([], args_filename=folder / "a.args")


def by_yaml_of_a_call(folder: Path) -> Any:
    (folder / "a.yaml").write_text("lora_r: 8\n")
    return read_arguments(DataclassParser(CLASSES), None, {"config": folder / "a.yaml", "use_cpu": True})


GIVEN_BY = {
    "command line": lambda _: DataclassParser(CLASSES).parse_args_into_dataclasses(["--lora_r", "8"]),
    "the other spelling": lambda _: DataclassParser(CLASSES).parse_args_into_dataclasses(["--lora-r=8"]),
    "YAML": by_yaml,
    "JSON": by_json,
    "a file of words": by_args_file,
    "YAML of a call": by_yaml_of_a_call,
    "keyword arguments": lambda _: read_arguments(DataclassParser(CLASSES), None, {"lora_r": 8}),
    "a dictionary": lambda _: read_arguments(DataclassParser(CLASSES), {"lora_r": 8}, {}),
    "words of a call": lambda _: read_arguments(DataclassParser(CLASSES), ["--lora_r", "8"], {}),
    "Python": lambda _: LoraArguments(lora_r=8),
    "parse_dict": lambda _: DataclassParser(LoraArguments).parse_dict({"lora_r": 8}),
    "HfArgumentParser": lambda _: transformers.HfArgumentParser(LoraArguments).parse_args_into_dataclasses(
        ["--lora_r", "8"]
    ),
    "HfArgumentParser.parse_dict": lambda _: transformers.HfArgumentParser(LoraArguments).parse_dict(
        {"lora_r": 8}
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", GIVEN_BY)
def test_flags_of_lora_are_refused_by_whatever_they_are_given(way: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--lora_r: expected with --lora True"):
        GIVEN_BY[way](tmp_path)


def test_real_hf_argument_parser_gives_what_was_on_the_line() -> None:
    parser = transformers.HfArgumentParser((TrainingArguments, LoraArguments))
    words = ["--output_dir", "o", "--use_cpu", "--seed", "42", "--lora", "--lora_r", "8"]
    args, lora = parser.parse_args_into_dataclasses(words)
    assert set(given_fields(args)) - {"debug"} == {"output_dir", "use_cpu", "seed"}  # it makes a text a list
    assert set(given_fields(lora)) == {"lora", "lora_r"}
    (alone,) = transformers.HfArgumentParser(LoraArguments).parse_args_into_dataclasses([])
    assert given_fields(alone) == {}


def test_train_lora_of_fastchat_takes_them() -> None:
    (lora,) = DataclassParser(LoraScriptArguments).parse_args_into_dataclasses(FASTCHATS.split())
    assert lora.lora and set(given_fields(lora)) == {
        "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules",
    }  # fmt: skip


def test_by_what_a_field_was_given(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("seed: 42\nlearning_rate: 5e-5\n")
    parser = DataclassParser(CLASSES)
    words = ["--config", str(tmp_path / "a.yaml"), "--seed", "42", "--no_async_save", "--use_cpu"]
    *_, args, _ = parser.parse_args_into_dataclasses(words)
    assert given_fields(args) == {
        "seed": "the command line", "async_save": "the command line", "use_cpu": "the command line",
        "learning_rate": str(tmp_path / "a.yaml"),
    }  # fmt: skip
    parser.parse_args_into_dataclasses(["--use_cpu"])
    assert parser.given.get("seed") is None, "of the call before"


def test_the_record_is_no_attribute_that_scripts_see() -> None:
    made = LoraArguments(lora=True, lora_r=8)
    assert set(vars(made)) == {field.name for field in dataclasses.fields(made)}
    assert made == LoraArguments(lora=True) and "_given" not in repr(made)
    for copied in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert given_fields(copied) == {"lora": "Python", "lora_r": "Python"}
    assert set(given_fields(dataclasses.replace(made, lora_alpha=32))) == {"lora", "lora_alpha"}


def test_what_a_script_sets_later_was_given(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), use_cpu=True, evaluation_strategy="steps")
    args.eval_strategy = "no"
    args.resolve()
    assert (
        set(given_fields(args)) == {"output_dir", "use_cpu", "eval_strategy"} and args.eval_strategy == "no"
    )


def test_arguments_of_transformers_give_what_is_not_their_default(tmp_path: Path) -> None:
    theirs = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], seed=42, max_steps=7)
    given = given_fields(as_arguments(theirs))
    assert "max_steps" in given and "seed" not in given and "num_train_epochs" not in given


def test_settings_of_an_adapter_to_go_on_from() -> None:
    """A flag at its default says another rank than the adapter's."""
    adapter = LoraSettings(r=16, lora_alpha=16, lora_dropout=0.05, target_modules=("q_proj", "v_proj"))
    check_same_settings(LoraArguments(lora=True, lora_weight_path="a"), adapter)
    with pytest.raises(
        ValueError, match="--lora_r: expected 16 as in the adapter of --lora_weight_path a, got 8"
    ):
        check_same_settings(LoraArguments(lora=True, lora_weight_path="a", lora_r=8), adapter)


def test_labels_of_a_script_leave_a_given_flag_without_effect() -> None:
    refuse_label_flags(DataArguments(data_path="a"), "preprocess")
    with pytest.raises(ValueError, match="--mask_policy auto has no effect"):
        refuse_label_flags(DataArguments(data_path="a", mask_policy="auto"), "preprocess")


def test_the_plan_asks_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path, "untied")
    words = ["--model", str(tmp_path), "--memory", "80GiB"]
    assert plan.main([*words, "--lora_r", "8", "--q_lora", "False"]) == 1
    assert "--lora_r, --q_lora: expected with --lora True" in capsys.readouterr().err
    assert plan.main([*words, "--lora", "--lora_r", "8"]) == 0


def test_the_start_page_shows_what_was_given(tmp_path: Path) -> None:
    shown = changed_arguments(LoraArguments(lora=True, lora_r=8), TrainingArguments(str(tmp_path), seed=42))
    assert shown["lora_r"] == 8 and shown["seed"] == 42 and "lora_alpha" not in shown


def test_names_that_are_no_fields_are_answered() -> None:
    """In Python by TypeError, as of any class, and with the name to write."""
    with pytest.raises(TypeError, match="unexpected keyword argument lr: write learning_rate"):
        TrainingArguments(output_dir="out", lr=1e-5)  # type: ignore[call-arg]
