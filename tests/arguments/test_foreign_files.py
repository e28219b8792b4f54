"""Files of other trainers given to --config: every key is named at once, with what to write for its value."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from argument_outcomes import CLASSES
from fastsft.arguments.parsing.foreign_flags import SHORT_NAMES, foreign_names
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.cli import doctor

# Of LLaMA-Factory's examples/train_lora/llama3_lora_sft.yaml.
LLAMA_FACTORY = """
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 2048
max_samples: 1000
preprocessing_num_workers: 16
output_dir: saves/llama3-8b/lora/sft
logging_steps: 10
overwrite_output_dir: true
per_device_train_batch_size: 1
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null
val_size: 0.1
"""
# Of axolotl's examples/llama-2/qlora.yml.
AXOLOTL = """
base_model: NousResearch/Llama-2-7b-hf
load_in_8bit: false
load_in_4bit: true
datasets:
  - path: mhenrichsen/alpaca_2k_test
    type: alpaca
  - path: mine.jsonl
val_set_size: 0.05
adapter: qlora
lora_model_dir:
sequence_len: 4096
sample_packing: true
lora_r: 32
lora_target_linear: true
wandb_project:
micro_batch_size: 2
num_epochs: 4
optimizer: paged_adamw_32bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
early_stopping_patience: 3
flash_attention: true
"""
FILES = {
    "LLaMA-Factory": (
        LLAMA_FACTORY,
        {
            "stage": "supervised fine-tuning is all there is", "finetuning_type": "write --lora True",
            "lora_rank": "write --lora True and --lora_r 8",
            "lora_target": "write --lora True and --lora_target_modules all-linear",
            "dataset": "write --data_path", "cutoff_len": "write --model_max_length",
            "max_samples": "--max_steps", "preprocessing_num_workers": "--data_cache",
            "val_size": "write --eval_split 0.1",
        },
        0,
    ),
    "axolotl": (
        AXOLOTL,
        {
            "base_model": "write --model_name_or_path", "load_in_8bit": "it is off",
            "load_in_4bit": "--lora True --q_lora True", "val_set_size": "write --eval_split 0.05",
            "datasets": "write --data_path hf://datasets/mhenrichsen/alpaca_2k_test,mine.jsonl",
            "adapter": "write --lora True and --q_lora True", "lora_model_dir": "leave it out: it is off",
            "sequence_len": "write --model_max_length", "sample_packing": "laid end to end",
            "lora_target_linear": "--lora_target_modules all-linear", "wandb_project": "it is off",
            "micro_batch_size": "write --per_device_train_batch_size",
            "num_epochs": "write --num_train_epochs",
            "optimizer": "write --optim", "lr_scheduler": "write --lr_scheduler_type",
            "flash_attention": "there is one attention",
        },
        1,
    ),
}  # fmt: skip


def said_of(path: Path) -> str:
    with pytest.raises(ValueError, match=r"^--config: ") as raised:
        DataclassParser(CLASSES).parse_args_into_dataclasses(["--config", str(path)])
    return str(raised.value)


@pytest.mark.parametrize("name", FILES)
def test_all_keys_at_once(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, expected, wrong = FILES[name]
    path = tmp_path / "run.yaml"
    path.write_text(text)
    first, *lines = said_of(path).splitlines()
    assert first.startswith(f"--config: {path}: a file of {name} (")
    assert f"); fastsft import {path} writes one for --config; " in first
    assert first.endswith(f"; {len(expected) + wrong} things to change:")
    for key, part in expected.items():
        (line,) = [line for line in lines if line.startswith(f"- unknown key {key!r}; ")]
        assert part in line, line
    assert len(lines) == len(expected) + wrong
    assert doctor.main(["--config", str(path)]) == 2
    printed = capsys.readouterr().err
    assert all(f"unknown key {key!r}" in printed for key in expected)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("finetuning_type: full", "without --lora True all weights are trained"),
        ("finetuning_type: freeze", "some layers alone are not in"),
        ("adapter: lora", "write --lora True"), ("adapter:", "without --lora True all weights are trained"),
        ("use_lora: true", "write --lora True"), ("use_peft: false", "without --lora True all weights"),
        ("lora_target: q_proj,v_proj", "--lora_target_modules q_proj v_proj"),
        ("target_modules: [q_proj, k_proj]", "--lora_target_modules q_proj k_proj"),
        ("adapter_name_or_path: runs/a", "--lora_weight_path runs/a"),
        ("use_rslora: true", "--lora_rslora True"),
        ("additional_target: embed_tokens", "--lora_modules_to_save embed_tokens"),
        ("stage: dpo", "dpo is not in"), ("packing: false", "leave it out: it is off"),
        ("bf_16: false", "the nearest known flag is --bf16"),
        ("lora_alpha_: 1", "LoRA's flags are FastChat's"),
    ],
)  # fmt: skip
def test_the_value_says_which_flag_is_meant(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert part in said_of(tmp_path / "a.yaml")


def test_on_the_command_line_too() -> None:
    words = ["--finetuning_type", "lora", "--lora_rank=4", "--load_in_8bit", "False"]
    with pytest.raises(ValueError, match="--finetuning_type: write --lora True") as raised:
        DataclassParser(CLASSES).parse_args_into_dataclasses(words, look_for_args_file=False)
    assert "--lora_rank: write --lora True and --lora_r 4" in str(raised.value)
    assert "--load_in_8bit: leave it out: it is off" in str(raised.value)


def test_unknown_keys_and_wrong_values_together(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("seed: many\nlearnig_rate: 1\nbf16: null\nmax_steps: 1\nmax-steps: 2\n")
    said = said_of(tmp_path / "a.yaml")
    assert (
        "4 things to change" in said and "seed: expected a whole number" in said and "is there twice" in said
    )
    assert "the nearest known flag is --learning_rate" in said and "bf16: expected bool, got nothing" in said


def test_no_flag_of_another_trainer_is_a_short_form_of_ours() -> None:
    """`--chat_template chatml` was taken for --chat_template_name."""
    parser, taken = DataclassParser(CLASSES), []
    for name in sorted(foreign_names().keys() - SHORT_NAMES.keys()):
        with contextlib.suppress(ValueError, SystemExit):
            parser.parse_args_into_dataclasses([f"--{name}", "1"], look_for_args_file=False)
            taken.append(name)
    assert taken == []


NUMBERS = {
    "1e-4": 1e-4, "1E-4": 1e-4, "1e5": 1e5, "-2e-3": -2e-3, "+1e3": 1e3, ".5e-3": 5e-4, "1.e-3": 1e-3,
    "1.5e-4": 1.5e-4, "0.0001": 1e-4, "3": 3, "'1e-4'": "1e-4", "1e": "1e", "e5": "e5", "1e-4x": "1e-4x",
}  # fmt: skip


@pytest.mark.parametrize("word", NUMBERS)
def test_numbers_inside_of_objects(tmp_path: Path, word: str) -> None:
    """As YAML 1.2 has them, in objects and lists of any depth."""
    text = f"fsdp_config:\n  a: {word}\n  b: {{c: [{word}]}}\nrun_name: {word}\n"
    (tmp_path / "a.yaml").write_text(text)
    found = DataclassParser(CLASSES).file_values(str(tmp_path / "a.yaml"))
    value = NUMBERS[word]
    assert found["fsdp_config"] == {"a": value, "b": {"c": [value]}}
    assert type(found["fsdp_config"]["a"]) is type(value)
    assert found["run_name"] == word.strip("'"), "a text stays as it is written"


def test_the_option_of_a_schedule(tmp_path: Path) -> None:
    text = "use_cpu: true\nlr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1e-6}\n"
    (tmp_path / "a.yaml").write_text(text)
    for args in (
        DataclassParser(CLASSES).parse_args_into_dataclasses(["--config", str(tmp_path / "a.yaml")])[2],
        DataclassParser(CLASSES).parse_yaml_file(tmp_path / "a.yaml")[2],
    ):
        assert args.lr_scheduler_kwargs == {"min_lr": 1e-6}
