"""A Trainer without a tokenizer saves its collator's, as transformers' Trainer does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from peft import LoraConfig, get_peft_model

from trainer_pairs import Plain, model, ours, theirs

TOKENIZER_FILES = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    words = {"<pad>": 0, "</s>": 1, "word": 2}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="word")),
        pad_token="<pad>", eos_token="</s>",
    )  # fmt: skip


def module(kind: str) -> Any:
    plain = model()
    if kind == "whole":
        return plain
    return get_peft_model(plain, LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]))


def tokenizer_files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.name in TOKENIZER_FILES}


@pytest.mark.parametrize("kind", ["whole", "adapters"])
def test_the_collators_tokenizer_is_in_checkpoints_and_directories(tmp_path: Path, kind: str) -> None:
    found = {}
    for name, make in (("theirs", theirs), ("ours", ours)):
        collator = transformers.DataCollatorForSeq2Seq(tokenizer())
        flags = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
        trainer = make(tmp_path / name, Plain(), collator=collator, module=module(kind), **flags)
        trainer.train()
        trainer.save_model(str(tmp_path / name / "end"))
        assert trainer.processing_class is None
        found[name] = [tokenizer_files(tmp_path / name / folder) for folder in ("checkpoint-1", "end")]
    assert found["ours"] == found["theirs"] and found["ours"][0].keys() == TOKENIZER_FILES
    assert trainer.tokenizer is None
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours" / "end")
    assert again.get_vocab() == tokenizer().get_vocab()


def test_a_tokenizer_of_the_trainer_comes_first(tmp_path: Path) -> None:
    collator = transformers.DataCollatorForSeq2Seq(tokenizer())
    trainer = ours(tmp_path, Plain(), collator=collator, max_steps=1)
    trainer.tokenizer = tokenizer()
    trainer.tokenizer.add_tokens(["mine"])
    trainer.save_model()
    assert "mine" in transformers.AutoTokenizer.from_pretrained(tmp_path).get_vocab()


def test_a_collator_whose_tokenizer_cannot_be_saved(tmp_path: Path) -> None:
    trainer = ours(tmp_path, Plain(), collator=transformers.DataCollatorForSeq2Seq(tokenizer()), max_steps=1)
    trainer.data_collator.tokenizer = None
    trainer.save_model()
    assert not tokenizer_files(tmp_path)
