"""Files with the keys of ten public ones of LLaMA-Factory and of axolotl: every key has its fate.

The expected fates are read off the sources of LLaMA-Factory 0.9.5 and axolotl 0.19.0.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fastsft.arguments.imports.draft import Draft, Fate
from fastsft.arguments.imports.source import read_source
from fastsft.arguments.parsing.flag_file import load_yaml
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.cli import import_config
from fastsft.cli.import_config import CLASSES

HERE = Path(__file__).parent
LORA = {"lora": True, "lora_target_modules": ["all-linear"]}
# name -> keys that are lost, keys that are changed, values, names of their defaults
LLAMAFACTORY: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "lora": (
        "max_samples", "cutoff_len overwrite_output_dir",
        {**LORA, "template": "llama-3", "data_path": ["data/facts.json", "data/chats.jsonl"], "lora_r": 8,
         "lora_alpha": 16, "lora_dropout": 0.0, "model_max_length": 2048},
        "lora_alpha lora_dropout",
    ),
    "qlora": (
        "template double_quantization", "cutoff_len val_size",
        {"q_lora": True, "lora_target_modules": ["q_proj", "v_proj"], "template": "llama-2",
         "eval_split": 0.1},
        "lora_r lora_alpha lora_dropout",
    ),
    "full_zero3": (
        "", "cutoff_len template deepspeed",
        {"lora": False, "fsdp": "full_shard auto_wrap", "template": "model",
         "data_path": "hf://datasets/owner/maths/all"},
        "",
    ),
    "packed_bf16": (
        "packing neat_packing", "cutoff_len pure_bf16",
        {"template": "chatml", "bf16": True, "save_strategy": "no", "logging_dir": "out/tb"}, "",
    ),
    "ray_tools": (
        "max_samples template", "cutoff_len",
        {**LORA, "template": "model", "data_path": "data/tools.json"}, "lora_alpha lora_dropout",
    ),
    "mlflow": (
        "mlflow_tracking_uri", "cutoff_len",
        {"report_to": "mlflow", "run_name": "llama3-lora", "lora_alpha": 32, "lora_dropout": 0.1}, "",
    ),
    "half": (
        "", "cutoff_len val_size",
        {"fp16": True, "bf16": False, "eval_split": 500, "data_path": "data/cards.json", "lora": False}, "",
    ),
    "evaluated": (
        "template", "cutoff_len deepspeed",
        {"fsdp": "shard_grad_op auto_wrap", "eval_data_path": "data/facts.json", "adam_beta2": 0.95}, "",
    ),
    "more_methods": (
        "use_dora loraplus_lr_ratio optim rope_scaling", "",
        {"learn": "last", "default_system": "Be kind.",
         "lora_modules_to_save": ["embed_tokens", "lm_head"], "lora_rslora": True,
         "neftune_noise_alpha": 5, "optim": "adamw_torch", "lora_alpha": 32, "model_max_length": 2048},
        "lora_alpha lora_dropout model_max_length",
    ),
    "tagged": (
        "dataset", "cutoff_len val_size",
        {"role_map": "caller=user,agent=assistant,desk=tool", "template": "gemma",
         "early_stopping_patience": 3, "train_sampling_strategy": "sequential",
         "data_path": ["data/calls.json", "data/doubts.json"]},
        "lora_alpha lora_dropout",
    ),
}  # fmt: skip
OFTEN = "save_total_limit per_device_eval_batch_size average_tokens_across_devices"
CHAT = "mask_policy template"
MEANS = "gradient_accumulation_steps"
AXOLOTL: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "qlora": (
        "datasets sample_packing",
        f"val_set_size sequence_len wandb_project optimizer bf16 evals_per_epoch saves_per_epoch {MEANS}",
        {**LORA, "q_lora": True, "template": "alpaca_stanford", "eval_steps": 1 / 16, "save_steps": 0.25,
         "optim": "adamw_torch", "data_path": "hf://datasets/mhenrichsen/alpaca_2k_test", "bf16": True,
         "eval_on_start": True, "save_total_limit": 4, "average_tokens_across_devices": False},
        f"{OFTEN} eval_on_start",
    ),
    "sharegpt_8bit": (
        "load_in_8bit sample_packing",
        "val_set_size sequence_len wandb_project evals_per_epoch saves_per_epoch",
        {**LORA, "template": "vicuna_v1.1", "optim": "adamw_bnb_8bit", "save_steps": 0.5,
         "eval_steps": 0.125},
        f"{CHAT} save_total_limit average_tokens_across_devices eval_on_start",
    ),
    "modules": (
        "", f"chat_template val_set_size lr_scheduler bf16 wandb_project {MEANS}",
        {"lora_target_modules": ["q_proj", "v_proj"], "lr_scheduler_type": "cosine_with_min_lr",
         "lr_scheduler_kwargs": {"min_lr_rate": 0.1}, "learning_rate": 2e-4, "early_stopping_patience": 3,
         "load_best_model_at_end": True, "run_name": "run-1", "save_strategy": "steps", "save_steps": 20},
        f"{OFTEN} eval_on_start warmup_ratio logging_steps",
    ),
    "own_prompt": (
        "datasets load_in_8bit",
        f"val_set_size sequence_len wandb_project bf16 evals_per_epoch saves_per_epoch deepspeed {MEANS}",
        {"fsdp": "shard_grad_op auto_wrap", "template": "model"}, f"{OFTEN} eval_on_start",
    ),
    "half": (
        "datasets sample_packing", "val_set_size sequence_len optimizer",
        {"fp16": True, "data_format": "text", "max_steps": 20, "save_strategy": "epoch",
         "data_path": "hf://datasets/owner/name", "optim": "adamw_torch"},
        f"{OFTEN} save_strategy logging_steps",
    ),
    "full_zero2": (
        "datasets sample_packing",
        f"val_set_size sequence_len wandb_project optimizer bf16 evals_per_epoch deepspeed {MEANS}",
        {"template": "llama-3", "fsdp": "shard_grad_op auto_wrap", "optim": "adamw_8bit",
         "run_name": "mine-1", "learning_rate": 1e-5, "report_to": "wandb", "eval_steps": 0.2},
        f"{OFTEN} eval_on_start save_strategy",
    ),
    "chat_template": (
        "", f"sequence_len bf16 saves_per_epoch warmup_ratio {MEANS}",
        {"template": "llama-3", "save_steps": 1 / 16, "data_path": "hf://datasets/owner/messages_2k"}, OFTEN,
    ),
    "short": (
        "", f"sequence_len warmup_ratio {MEANS}",
        {"q_lora": True, "template": "model", "bf16": True, "save_strategy": "epoch"},
        f"{CHAT} {OFTEN} save_strategy logging_steps bf16",
    ),
    "holdout": (
        "sample_packing", f"chat_template sequence_len fsdp_config warmup_ratio {MEANS}",
        {"eval_data_path": "holdout.jsonl", "fsdp": "full_shard auto_wrap offload", "template": "model",
         "lora_target_modules": ["q_proj", "k_proj"], "lr_scheduler_type": "cosine"},
        f"{OFTEN} save_strategy logging_steps lr_scheduler_type",
    ),
    "dora_roles": (
        "datasets peft_use_dora optimizer special_tokens", f"val_set_size sequence_len {MEANS}",
        {"role_map": "customer=user,agent=assistant", "template": "chatml", "optim": "adamw_torch",
         "lr_scheduler_type": "constant_with_warmup", "lora_modules_to_save": ["embed_tokens", "lm_head"]},
        f"{OFTEN} lora_dropout save_strategy logging_steps warmup_ratio",
    ),
}  # fmt: skip
CASES = [
    *(("llamafactory", name, *expected) for name, expected in LLAMAFACTORY.items()),
    *(("axolotl", name, *expected) for name, expected in AXOLOTL.items()),
]


def keys(draft: Draft, fate: Fate) -> set[str]:
    return {row.key for row in draft.rows if row.fate is fate}


@pytest.mark.parametrize(("trainer", "name", "lost", "changed", "values", "defaults"), CASES)
def test_every_key(
    trainer: str, name: str, lost: str, changed: str, values: dict[str, Any], defaults: str,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    shutil.copytree(HERE / trainer, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    source = read_source(Path(f"{name}.yaml"))
    draft = source.translate(Path())
    assert source.framework.name == trainer
    given = load_yaml(Path(f"{name}.yaml").read_text())
    assert sorted(row.key for row in draft.rows if row.key) == sorted(given)
    assert keys(draft, Fate.LOST) == set(lost.split())
    assert keys(draft, Fate.CHANGED) == set(changed.split())
    assert {key: draft.values.get(key) for key in values} == values
    written = {row.text.partition(":")[0] for row in draft.rows if row.fate is Fate.DEFAULT}
    assert written == set(defaults.split())


@pytest.mark.parametrize(("trainer", "name"), [case[:2] for case in CASES])
def test_the_written_file_is_taken(
    trainer: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shutil.copytree(HERE / trainer, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    table = LLAMAFACTORY if trainer == "llamafactory" else AXOLOTL
    assert import_config.main([f"{name}.yaml"]) == int(bool(table[name][0]))
    printed = capsys.readouterr().out
    content = Path(f"{name}-fastsft.yaml").read_text()
    assert all(f"# {line}".rstrip() in content for line in printed.splitlines()[:10])
    assert DataclassParser(CLASSES).file_values(f"{name}-fastsft.yaml")["model_name_or_path"]
