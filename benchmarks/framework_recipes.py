"""The recipe that bench_frameworks.py has every framework train: model, records and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fastsft.cli.demo import packaged_conversations
from published_templates import write_model

RECORDS, BATCH, STEPS, LENGTH, RATE = 16, 4, 6, 1024, 1e-3
# Template: kind of model, and the names that LLaMA-Factory and ms-swift have for it.
TEMPLATES = {
    "qwen2.5": ("qwen2", "qwen", {"model_type": "qwen2", "template": "qwen2_5"}),
    "llama-3": ("llama", "llama3", {"model_type": "llama", "template": "llama3"}),
}
SYSTEM = "Answer in one sentence."
# What is learned -> framework -> the keys that say so there. In all of them `fastsft import` sets ours.
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "every reply": {name: {} for name in ("trl", "llamafactory", "swift", "axolotl")},
    "the last reply": {"llamafactory": {"mask_history": True}, "swift": {"loss_scale": "last_round"}},
    "marked replies": {"swift": {}, "axolotl": {}},
    "every reply, one micro-batch": {
        "axolotl": {"micro_batch_size": RECORDS, "gradient_accumulation_steps": 1}
    },
}
MARKED = "marked replies"


def write_stand_in(folder: Path, template: str) -> Path:
    """A tiny random model with the published template and its special tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    write_model(folder, template)
    # TRL knows templates by their whole text, and Qwen2.5's ends with a line break.
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text("utf-8").rstrip("\n") + "\n" * (template == "qwen2.5"), "utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        TEMPLATES[template][0], vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
        initializer_range=0.1, tie_word_embeddings=False, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def records(*, is_marked: bool) -> Iterator[dict[str, Any]]:
    """Conversations of the demo as messages; every other one has a system text.

    is_marked: True to mark the first reply of each as not learned, by the names of ms-swift and axolotl.
    """
    names = {"human": "user", "gpt": "assistant"}
    mark = {"loss": False, "train": False}
    for number, record in enumerate(json.loads(packaged_conversations())[:RECORDS]):
        messages = [{"role": names[m["from"]], "content": m["value"]} for m in record["conversations"]]
        if is_marked and len(messages) > 2:
            messages[1] |= mark
        system = [{"role": "system", "content": SYSTEM}] if number % 2 else []
        yield {"messages": [*system, *messages]}


def configurations(
    model: Path, data: Path, out: Path, template: str
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return a file of each framework: its name and its keys. Other keys have the framework's defaults."""
    _, llamafactory, swift = TEMPLATES[template]
    steps = {"gradient_accumulation_steps": RECORDS // BATCH, "learning_rate": RATE}
    usual = {
        **steps, "per_device_train_batch_size": BATCH, "num_train_epochs": STEPS, "logging_steps": 1,
        "save_strategy": "no", "report_to": "none", "output_dir": str(out),
    }  # fmt: skip
    return {
        "trl": ("trl.yaml", {
            "model_name_or_path": str(model), "dataset_name": str(data.parent), "assistant_only_loss": True,
            "max_length": LENGTH, "dtype": "float32", "bf16": False, **usual,
        }),
        "llamafactory": ("llamafactory.yaml", {
            "model_name_or_path": str(model), "stage": "sft", "do_train": True, "finetuning_type": "full",
            "dataset": "chats", "dataset_dir": str(data.parent.parent), "template": llamafactory,
            "cutoff_len": LENGTH, "bf16": False, **usual,
        }),
        "swift": ("swift.json", {
            "model": str(model), **swift, "tuner_type": "full", "dataset": [str(data)],
            "torch_dtype": "float32", "max_length": LENGTH, "split_dataset_ratio": 0, **usual,
        }),
        "axolotl": ("axolotl.yaml", {
            "base_model": str(model), "sequence_len": LENGTH, "chat_template": "tokenizer_default",
            "datasets": [{
                "path": str(data), "ds_type": "json", "type": "chat_template",
                "message_field_training": "train",
            }],
            "micro_batch_size": BATCH, "num_epochs": STEPS, **steps, "optimizer": "adamw_torch",
            "lr_scheduler": "cosine", "warmup_steps": 0, "bf16": False, "fp16": False, "tf32": False,
            "logging_steps": 1,
            "save_strategy": "no", "val_set_size": 0, "output_dir": str(out),
            "dataset_prepared_path": str(out / "prepared"),
        }),
    }  # fmt: skip


def write_data(folder: Path, *, is_marked: bool) -> None:
    """The conversations, and the file with which LLaMA-Factory finds them."""
    (folder / "data").mkdir(parents=True)
    lines = [json.dumps(record) + "\n" for record in records(is_marked=is_marked)]
    (folder / "data" / "chats.jsonl").write_text("".join(lines))
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
            "system_tag": "system"}  # fmt: skip
    entry = {
        "file_name": "data/chats.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": tags,
    }
    (folder / "dataset_info.json").write_text(json.dumps({"chats": entry}))
