"""Commands and files of TRL, ms-swift, FastChat and Stanford Alpaca, and which trainer a file is of.

The expected values are read off the sources of TRL 1.16, ms-swift 4.6 and the scripts of 2023.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastsft.arguments.imports.draft import Draft, Fate
from fastsft.arguments.imports.shell import read_command
from fastsft.arguments.imports.source import read_source
from fastsft.arguments.parsing.flag_file import load_yaml
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.cli import doctor, import_config
from fastsft.cli.import_config import CLASSES

TRL = """
model_name_or_path: Qwen/Qwen2-0.5B
dataset_name: trl-lib/Capybara
learning_rate: 2.0e-4
packing: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
eos_token: <|im_end|>
eval_strategy: steps
eval_steps: 100
use_peft: true
lora_r: 32
load_in_4bit: true
output_dir: out
"""
SWIFT = r"""#!/bin/bash
# 22GB
export OUT=output
CUDA_VISIBLE_DEVICES=0,1 \
NPROC_PER_NODE=2 \
swift sft \
    --model Qwen/Qwen2.5-7B-Instruct \
    --train_type lora \
    --dataset 'AI-ModelScope/alpaca-gpt4-data-en#500' chats.jsonl \
    --torch_dtype bfloat16 \
    # --num_train_epochs 3 \
    --learning_rate 2e-4 \
    --lora_alpha 16 --target_modules all-linear \
    --system 'You are a helpful assistant.' \
    --max_length 2048 \
    --loss_scale last_round+ignore_empty_think \
    --deepspeed zero3_offload \
    --output_dir "${OUT}/one" 2>&1 | tee log.txt
"""
FASTCHAT = r"""
DATA=${DATA:-data/chats.json}
torchrun --nnodes=2 --nproc_per_node=4 --master_port=20001 fastchat/train/train_mem.py \
    --model_name_or_path meta-llama/Llama-2-7b-hf --data_path $DATA \
    --bf16 True --evaluation_strategy "no" --weight_decay 0. --tf32 True \
    --fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap 'LlamaDecoderLayer' \
    --model_max_length 2048 --gradient_checkpointing True --lazy_preprocess True
"""


SHARED = """
base_model: Qwen/Qwen2.5-0.5B
datasets: [{path: chats.jsonl, type: chat_template}]
"""


def imported(path: Path, text: str, **options: Any) -> tuple[Draft, int | None]:
    path.write_text(text)
    source = read_source(path, **options)
    return source.translate(path.parent), source.ranks


def lost(draft: Draft) -> set[str]:
    return {row.key for row in draft.rows if row.fate is Fate.LOST}


@pytest.mark.parametrize(("most", "is_lost"), [(2, True), (3, False), (1000, False)])
def test_a_limit_that_no_data_set_reaches(most: int, is_lost: bool, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    info = {"a": {"file_name": "a.json"}, "b": {"file_name": "b.jsonl"}}
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps(info))
    (tmp_path / "data" / "a.json").write_text("[{}, {}]")
    (tmp_path / "data" / "b.jsonl").write_text("{}\n{}\n\n{}\n")
    text = f"stage: sft\nlora_target: all\ncutoff_len: 9\ndataset: a,b\nmax_samples: {most}"
    draft, _ = imported(tmp_path / "a.yaml", text)
    assert ("max_samples" in lost(draft)) is is_lost
    (tmp_path / "data" / "a.json").unlink()
    draft, _ = imported(tmp_path / "a.yaml", text)
    assert "max_samples" in lost(draft)


def test_trl(tmp_path: Path) -> None:
    draft, _ = imported(tmp_path / "sft.yaml", TRL)
    assert draft.values == {
        "model_name_or_path": "Qwen/Qwen2-0.5B", "data_path": "hf://datasets/trl-lib/Capybara",
        "eval_data_path": "hf://datasets/trl-lib/Capybara/data/test-*", "learning_rate": 2e-4,
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "eval_strategy": "steps",
        "eval_steps": 100, "lora": True, "lora_r": 32, "q_lora": True, "output_dir": "out",
        # SFTConfig, ModelConfig and peft
        "mask_policy": "spans", "template": "model", "logging_steps": 10, "model_max_length": 1024,
        "bf16": True, "lora_alpha": 32, "lora_target_modules": ["q_proj", "v_proj"],
    }  # fmt: skip
    # "": that every token of records with messages is learned there, by default
    assert lost(draft) == {"packing", ""}
    draft, _ = imported(tmp_path / "sft.yaml", TRL.replace("packing", "assistant_only_loss"))
    assert lost(draft) == set()


@pytest.mark.parametrize(
    ("given", "system"),
    [
        (r"Be kind.\nBe brief.", "Be kind.\nBe brief."),
        ("kind.txt", "Be kind.\n"),
        ("other.txt", None),
        ("", None),
    ],
)
def test_the_system_text_of_swift(given: str, system: str | None, tmp_path: Path) -> None:
    """TemplateArguments.__post_init__ reads files named .txt, and line breaks by their escape."""
    (tmp_path / "kind.txt").write_text("Be kind.\n")
    draft, _ = imported(tmp_path / "run.sh", SWIFT.replace("You are a helpful assistant.", given))
    assert draft.values.get("default_system") == system
    assert ("system" in lost(draft)) is (given == "other.txt")


@pytest.mark.parametrize(
    ("words", "learned"),
    [
        ("--model Qwen/Qwen3-8B", "filled"),
        ("--model models/Qwen3-30B-A3B-Base/", "filled"),
        ("--model my --template qwen3", "filled"),
        ("--model Qwen/Qwen3-8B --loss_scale last_round", "filled"),
        ("--model Qwen/Qwen3-8B --disable_ignore_empty_think true", None),
        ("--model Qwen/Qwen3-4B-Instruct-2507", None),
        ("--model Qwen/Qwen3-8B --template chatml", None),
        ("--model Qwen/Qwen2.5-7B-Instruct", None),
    ],
)
def test_empty_thoughts_of_swift(words: str, learned: str | None, tmp_path: Path) -> None:
    """TemplateArguments._set_loss_scale adds ignore_empty_think for hybrid thinking models."""
    draft, _ = imported(tmp_path / "run.sh", f"swift sft {words} --dataset a.jsonl")
    assert draft.values.get("learn_thoughts") == learned
    assert lost(draft) == set()


def test_swift(tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text("")
    draft, ranks = imported(tmp_path / "run.sh", SWIFT)
    assert ranks == 2
    assert lost(draft) == {"dataset"}
    assert draft.values == {
        "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "lora": True, "lora_alpha": 16,
        "lora_target_modules": ["all-linear"], "bf16": True, "learning_rate": 2e-4,
        "model_max_length": 2048, "learn": "after_last_user", "learn_thoughts": "filled",
        "fsdp": "full_shard auto_wrap offload", "output_dir": "output/one",
        "default_system": "You are a helpful assistant.",
        "data_path": ["hf://datasets/AI-ModelScope/alpaca-gpt4-data-en", str(tmp_path / "chats.jsonl")],
        # SftArguments
        "mask_policy": "spans", "template": "model", "per_device_train_batch_size": 1,
        "per_device_eval_batch_size": 1, "gradient_accumulation_steps": 16, "weight_decay": 0.1,
        "adam_beta2": 0.95, "lr_scheduler_type": "cosine", "logging_steps": 5, "logging_first_step": True,
    }  # fmt: skip


def test_fastchat_and_stanford(tmp_path: Path) -> None:
    draft, ranks = imported(tmp_path / "run.sh", FASTCHAT)
    assert ranks == 8
    assert lost(draft) == set()
    assert draft.values["data_path"] == "data/chats.json" and "template" not in draft.values
    assert draft.values["evaluation_strategy"] == "no"
    text = FASTCHAT.replace("fastchat/train/train_mem.py", "train.py").replace("--lazy_preprocess True", "")
    draft, _ = imported(tmp_path / "run.sh", text)
    assert draft.values["template"] == "alpaca_stanford"


@pytest.mark.parametrize(
    ("line", "trainer", "flags"),
    [
        ("llamafactory-cli train a.yaml learning_rate=1e-5", "llamafactory", {"learning_rate": 1e-5}),
        ("FORCE_TORCHRUN=1 llamafactory-cli train --stage sft", "llamafactory", {"stage": "sft"}),
        ("accelerate launch -m axolotl.cli.train a.yaml --num-epochs=2", "axolotl", {"num_epochs": 2}),
        ("cd here && axolotl train a.yaml", "axolotl", {}),
        ("trl sft --packing --dataset_name a/b  # later", "trl", {"packing": True, "dataset_name": "a/b"}),
        ("trl sft --config a.yaml --max_length None", "trl", {"max_length": None}),
        ("python -m fastchat.train.train_lora --lora_r 8 > log", "fastchat", {"lora_r": 8}),
        ("A='$B'; swift sft --x $A --y '$B' --z 007", "swift", {"x": "$B", "y": "$B", "z": "007"}),
        ("swift sft --a b#c --d -1 -0.5", "swift", {"a": "b#c", "d": [-1, -0.5]}),
    ],
)
def test_commands(line: str, trainer: str, flags: dict[str, Any]) -> None:
    command = read_command(line, {})
    assert (command.trainer, command.flags) == (trainer, flags)
    assert command.files == (["a.yaml"] if "a.yaml" in line else [])


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("swift rlhf --rlhf_type dpo", "expected swift sft"),
        ("swift sft --model $MODEL", "--model: $MODEL has no value in the script"),
        ("swift sft --output_dir out/$(date +%F)", "is the output of a command"),
        ("echo hello", "no training command: expected swift sft, .*; it has echo"),
        ("swift sft 'unclosed", "not read as a shell command"),
        ("swift sft word --a b", "'word' follows no flag"),
    ],
)
def test_commands_that_are_refused(line: str, part: str) -> None:
    with pytest.raises(ValueError, match=part.replace("$", r"\$").replace("(", r"\(")):
        read_command(line, {})


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("stage: dpo\nfinetuning_type: lora", "stage: dpo is not in"),
        ("stage: sft\nfinetuning_type: freeze", "expected lora or full, got freeze"),
        ("stage: sft\ncutoff_len: 5\ndo_train: false", "do_train: false is no training"),
        ("base_model: a\nrl: dpo\nmicro_batch_size: 1", "rl: dpo is not in"),
        ("learning_rate: 1e-4\nseed: 1", "every key is fastsft's own"),
        ("nothing: 1", "no key that a single trainer has; name one of llamafactory, axolotl, trl, swift"),
        (
            "finetuning_type: lora\nlora_target: all\nbase_model: a\nmicro_batch_size: 1",
            "keys of several trainers (LLaMA-Factory: finetuning_type, lora_target; axolotl: base_model, "
            "micro_batch_size); name one",
        ),
        ("- 1", "expected a configuration, keys with values, got a list; data files need no import"),
        ("a: [", "is not YAML in line 1, `a: [`: "),
        (
            "stage: sft\ncutoff_len: many\nlora_target: all",
            "model_max_length: expected a whole number, got 'many'",
        ),
    ],
)
def test_files_that_are_refused(
    text: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(text)
    assert import_config.main(["theirs.yaml"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fastsft import: theirs.yaml") and part in error
    assert not Path("theirs-fastsft.yaml").exists()


def test_an_unknown_key_has_its_nearest(tmp_path: Path) -> None:
    draft, _ = imported(tmp_path / "a.yaml", "base_model: a\nmicro_batch_sise: 2\nnum_epochs: 1\nzzz: 1")
    (near, far) = [row.text for row in draft.rows if row.fate is Fate.LOST]
    assert near.endswith("the nearest is micro_batch_size") and far.endswith("none is near it")


def test_the_written_file_and_its_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(FASTCHAT)
    assert import_config.main(["run.sh", "--output", "mine.yaml"]) == 0
    printed = capsys.readouterr().out
    assert "train: FASTSFT_NUM_PROCESSES=8 fastsft train --config mine.yaml" in printed
    content = Path("mine.yaml").read_text()
    table = printed.partition("\nwrote ")[0].rstrip().splitlines()
    assert [f"# {line}".rstrip() for line in table] == content.splitlines()[4 : 4 + len(table)]
    assert load_yaml(content)["weight_decay"] == 0.0
    # An existing file stays.
    assert import_config.main(["run.sh", "--output", "mine.yaml"]) == 2
    assert "mine.yaml exists and stays as it is" in capsys.readouterr().err
    assert import_config.main(["run.sh", "--output", "mine.json"]) == 2
    assert "expected a .yaml or .yml file" in capsys.readouterr().err


def test_a_value_with_line_breaks_stays_in_its_comment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, mark in enumerate(("\\n", "\\r", "\\x85", "\\u2028")):
        name = f"a{number}.yaml"
        Path(name).write_text(
            f'{TRL}run_name: "x{mark}seed: 9 {mark}lora_x: 1"\ndataset_text: "{mark}y: 1"\n'
        )
        assert import_config.main([name]) == 1
        values = load_yaml(Path(f"a{number}-fastsft.yaml").read_text())
        assert values["run_name"].startswith("x") and not {"seed", "lora_x", "y"} & values.keys()


def test_train_and_doctor_say_to_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sft.yaml").write_text(TRL)
    line = "--config: sft.yaml: a file of TRL (dataset_name, eos_token, use_peft); fastsft import sft.yaml"
    for words in (["sft.yaml"], ["--config", "sft.yaml"]):
        with pytest.raises(ValueError, match=r"^--config: sft\.yaml: a file of TRL") as raised:
            DataclassParser(CLASSES).parse_args_into_dataclasses(words)
        assert str(raised.value).startswith(line)
        assert all(f"unknown key {key!r}" in str(raised.value) for key in ("packing", "use_peft"))
        assert doctor.main(words) == 2
        assert line in capsys.readouterr().err
    # A file of fastsft's own with a slip is no file of another trainer.
    Path("own.yaml").write_text("learning_rat: 1e-4\nseed: 1\n")
    with pytest.raises(ValueError, match=r"own\.yaml: unknown key 'learning_rat'"):
        DataclassParser(CLASSES).parse_args_into_dataclasses(["--config", "own.yaml"])


@pytest.mark.parametrize("key", ["sequence_parallel_degree", "context_parallel_size"])
def test_ranks_that_share_rows_in_axolotl(key: str, tmp_path: Path) -> None:
    draft, _ = imported(tmp_path / "shared.yaml", f"{SHARED}{key}: 2\n")
    assert draft.values["context_parallel_size"] == 2
    assert [row.fate for row in draft.rows if row.key == key] == [Fate.CARRIED]


def test_ranks_that_share_rows_in_swift(tmp_path: Path) -> None:
    text = SWIFT.replace("--max_length 2048", "--max_length 2048 --sequence_parallel_size 2")
    draft, _ = imported(tmp_path / "shared.sh", text)
    assert draft.values["context_parallel_size"] == 2
