"""Scripts in FastChat's manner, of which the import of the Trainer is the only line that is ours."""

from __future__ import annotations

import importlib.util
from pathlib import Path

BEFORE, AFTER = "from transformers import Trainer\n", "from fastsft import Trainer\n"

# One that gathers the weights itself, as FastChat's scripts for other models do.
OLDER = """
import json, pathlib
from dataclasses import dataclass, field
from typing import Optional

import transformers
from fastsft import Trainer
from fastsft.train import LazySupervisedDataset


@dataclass
class ModelArguments:
    model_name_or_path: Optional[str] = field(default="facebook/opt-125m")


@dataclass
class DataArguments:
    data_path: str = field(default=None)


@dataclass
class TrainingArguments(transformers.TrainingArguments):
    cache_dir: Optional[str] = field(default=None)
    optim: str = field(default="adamw_torch")
    model_max_length: int = field(default=512)
    greeting: str = field(default="none")


def safe_save_model_for_hf_trainer(trainer, output_dir):
    state_dict = trainer.model.state_dict()
    if trainer.args.should_save:
        cpu_state_dict = {key: value.cpu() for key, value in state_dict.items()}
        del state_dict
        trainer._save(output_dir, state_dict=cpu_state_dict)


def train():
    parser = transformers.HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    model = transformers.AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
    model.tie_weights()
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        model_args.model_name_or_path, model_max_length=training_args.model_max_length,
        padding_side="right", use_fast=False,
    )
    tokenizer.pad_token = tokenizer.unk_token
    model.resize_token_embeddings(len(tokenizer))
    raw = json.load(open(data_args.data_path))
    trainer = Trainer(
        model=model, tokenizer=tokenizer, args=training_args,
        train_dataset=LazySupervisedDataset(raw, tokenizer=tokenizer),
    )
    assert trainer.args.greeting == "hello"
    if list(pathlib.Path(training_args.output_dir).glob("checkpoint-*")):
        trainer.train(resume_from_checkpoint=True)
    else:
        trainer.train()
    trainer.save_state()
    safe_save_model_for_hf_trainer(trainer=trainer, output_dir=training_args.output_dir)
    if trainer.args.should_save:
        saved = transformers.AutoModelForCausalLM.from_pretrained(training_args.output_dir)
        assert all(ours.equal(theirs) for ours, theirs in zip(model.parameters(), saved.parameters()))


if __name__ == "__main__":
    train()
"""


def fastchat_script() -> str:
    """FastChat's train.py, whose import of the Trainer is ours; nothing else is changed."""
    spec = importlib.util.find_spec("fastchat")
    assert spec and spec.submodule_search_locations
    text = Path(spec.submodule_search_locations[0], "train", "train.py").read_text()
    assert text.count(BEFORE) == 1
    return text.replace(BEFORE, AFTER)
