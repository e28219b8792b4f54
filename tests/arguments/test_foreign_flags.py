"""Flags that people bring from other trainers: what to write here, or that it is not here."""

from __future__ import annotations

import re

import pytest

from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.foreign_flags import foreign_names, is_of_lora
from fastsft.arguments.parsing.hints import near_flag, slips
from fastsft.arguments.parsing.parser import DataclassParser

CLASSES = (ModelArguments, DataArguments, TrainingArguments, LoraArguments)
PARSER = DataclassParser(CLASSES, prog="train")
KNOWN = {option.lstrip("-") for option in PARSER._option_string_actions}
LORA = "LoRA's flags are FastChat's, with --lora True"
QUANTISED = "leave it out; LoRA has its base model in 4 bits"
# What a user of another trainer writes -> a part of what is said.
BROUGHT = {
    "--batch_size": "write --per_device_train_batch_size", "--per_device_batch_size": "_train_batch_size",
    "--lora_rank": LORA, "--qlora": LORA, "--use_lora": LORA, "--use_peft": LORA,
    "--load_in_4bit": QUANTISED, "--packing": "laid end to end without padding",
    "--attn_implementation": "there is one attention", "--device": "--use_cpu True for the CPU",
    "--lr": "write --learning_rate",
    # TRL
    "--dataset_name": "write --data_path", "--max_length": "write --model_max_length",
    "--bnb_4bit_quant_type": QUANTISED, "--torch_dtype": "write --bf16 True", "--model_revision": "download",
    "--assistant_only_loss": "replies alone are learned", "--dataset_text_field": "docs/data_files.md",
    # LLaMA-Factory
    "--finetuning_type": "all weights are trained", "--cutoff_len": "write --model_max_length",
    "--flash_attn": "there is one attention", "--quantization_bit": QUANTISED, "--stage": "supervised",
    "--dataset": "write --data_path", "--neat_packing": "end to end", "--lora_target_linear": LORA,
    "--val_size": "write --eval_split", "--preprocessing_num_workers": "--data_cache",
    # axolotl
    "--base_model": "write --model_name_or_path", "--adapter": LORA, "--sequence_len": "--model_max_length",
    "--micro_batch_size": "write --per_device_train_batch_size", "--num_epochs": "write --num_train_epochs",
    "--sample_packing": "end to end", "--optimizer": "write --optim", "--lr_scheduler": "lr_scheduler_type",
    "--evals_per_epoch": "--eval_strategy epoch", "--wandb_project": "--report_to wandb",
    "--train_on_inputs": "replies alone", "--flash-attention": "there is one attention",
    # Unsloth, torchtune and the rest
    "--max_seq_length": "write --model_max_length", "--use_gradient_checkpointing": "--recompute",
    "--r": LORA, "--random_state": "write --seed", "--epochs": "write --num_train_epochs",
    "--grad_accum": "write --gradient_accumulation_steps", "--use_dora": LORA,
    "--gpus": "CUDA_VISIBLE_DEVICES", "--sequence_parallel_size": "write --context_parallel_size",
    "--num_gpus": "FASTSFT_NUM_PROCESSES", "--warmup": "write --warmup_ratio or --warmup_steps",
    "--conv_template": "write --template", "--resume": "a run resumes by itself",
}  # fmt: skip


def said_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    try:
        PARSER.parse_args_into_dataclasses(list(words), look_for_args_file=False)
    except ValueError as error:
        return str(error)
    except SystemExit as left:
        assert left.code == 2
        return capsys.readouterr().err
    raise AssertionError(f"{words} is taken")


@pytest.mark.parametrize("flag", BROUGHT)
def test_a_flag_of_another_trainer(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = said_of(capsys, flag, "1")
    assert BROUGHT[flag] in said and flag in said, said
    assert "nearest" not in said and "HfArgumentParser" not in said and len(said.splitlines()) == 1


def test_what_is_to_be_written_is_known_here() -> None:
    """And what is brought is no flag of ours, which would be taken without a word."""
    for name, said in foreign_names().items():
        named = re.findall(r"--(\w+)", said)
        assert all(flag in KNOWN or flag == "nproc_per_node" for flag in named), (name, said)
        assert name not in KNOWN, name
        assert not is_of_lora(name), f"{name} is of LoRA already"


@pytest.mark.parametrize(
    ("flag", "near"),
    [
        ("learnig_rate", "learning_rate"), ("lerning_rate", "learning_rate"), ("sede", None),
        ("learning_rte", "learning_rate"), ("recomptue", "recompute"),
        ("gradient_acumulation_step", "gradient_accumulation_steps"),
        ("save_stpes", "save_steps"), ("bf_16", "bf16"), ("scheduler_kwargs", "lr_scheduler_kwargs"),
        ("model_max_lenght", "model_max_length"), ("eval_data_pth", "eval_data_path"),
        ("vision_tower", None), ("use_peft", None), ("packing", None), ("loading_in_4bit", None),
        ("number_of_epochs_to_train", None), ("attention_implementation", None), ("train_batch", None),
    ],
)  # fmt: skip
def test_near_is_a_slip_of_the_pen(flag: str, near: str | None) -> None:
    names = [name for name in KNOWN if "-" not in name]
    found = near_flag(flag, names)
    assert found == near if flag != "train_batch" else found in (None, "per_device_train_batch_size")


def test_slips_are_counted_as_typed() -> None:
    assert [slips(word, "steps", 3) for word in ("steps", "step", "stteps", "stesp", "staps", "xy")] == [
        0, 1, 1, 1, 1, 4,
    ]  # fmt: skip
    assert slips("logging", "training", 3) == slips("training", "logging", 3)


def test_the_beginning_of_several_flags_names_each_once(capsys: pytest.CaptureFixture[str]) -> None:
    said = said_of(capsys, "--save_s", "1")
    assert (
        "--save_s is the beginning of several flags: --save_strategy, --save_steps, --save_safetensors"
        in said
    )
    assert said.count("--save_steps") == 1 and "--save-steps" not in said


def test_a_percentage_is_a_share(capsys: pytest.CaptureFixture[str]) -> None:
    assert "; write 0.03" in said_of(capsys, "--warmup_ratio", "3%")
    assert "; write 0.085" in said_of(capsys, "--eval_steps=8.5%")
    assert "; write 0.05" in said_of(capsys, "--eval_split", "5 %")
    assert "; write" not in said_of(capsys, "--warmup_ratio", "x%")


def test_model_and_data_in_short(tmp_path) -> None:
    config = tmp_path / "a.yaml"
    config.write_text("data: b.json\n")
    for words in (
        ["--model", "m", "--data=d.json"],
        ["--model=m", "--config", str(config), "--data", "d.json"],
    ):
        model, data, *_ = PARSER.parse_args_into_dataclasses(words, look_for_args_file=False)
        assert (model.model_name_or_path, data.data_path) == ("m", "d.json")
    parser = DataclassParser(TrainingArguments)
    parser.add_argument("--model")  # of a script's own
    _, rest = parser.parse_args_into_dataclasses(["--model", "m"], look_for_args_file=False)
    assert rest.model == "m"
