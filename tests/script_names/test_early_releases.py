"""Functions of FastChat v0.1, against what its recipe says of each token: who speaks it."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from e2e.command_line import TRAINER
from fastsft.train import (
    IGNORE_INDEX,
    DataCollatorForSupervisedDataset,
    _add_speaker_and_signal,
    _mask_targets,
    _tokenize_fn,
    safe_save_model_for_hf_trainer,
    smart_tokenizer_and_embedding_resize,
)

SOURCES = [
    [{"from": "human", "value": "Hi there"}, {"from": "gpt", "value": "Hello, what is it?"}],
    [
        {"from": "human", "value": "One\ntwo"},
        {"from": "gpt", "value": "Three"},
        {"from": "Human", "value": "4"},
    ],
    [{"from": "system", "value": "nobody knows me"}, {"from": "gpt", "value": "I do"}],
]
HEADER = "A chat.\n\n"
MODEL = TRAINER / "model_untied"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = AutoTokenizer.from_pretrained(MODEL, use_fast=False, model_max_length=64, padding_side="right")
    made.pad_token = made.unk_token
    return made


def test_sentences_are_marked_in_place() -> None:
    sources = copy.deepcopy(SOURCES)
    texts = [_add_speaker_and_signal(HEADER, source) for source in sources]
    assert texts[1] == f"{HEADER}### Human: One\ntwo\n### Assistant: Three\n### Human: 4\n"
    assert texts[2] == f"{HEADER}### unknown: nobody knows me\n### Assistant: I do\n"
    assert sources[0][1]["value"] == "### Assistant: Hello, what is it?\n"
    assert _add_speaker_and_signal("x", [{"from": "gpt", "value": "y"}], False) == "x"


def test_texts_become_ids_cut_at_the_limit(tokenizer: Any) -> None:
    made = _tokenize_fn(["a b", "word " * 100], tokenizer)
    assert made["input_ids"] is made["labels"] and made["input_ids_lens"] is made["labels_lens"]
    assert made["input_ids"][0].tolist() == tokenizer("a b").input_ids
    assert made["input_ids_lens"] == [len(tokenizer("a b").input_ids), 64]


def test_what_a_human_says_is_not_learned(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    target = torch.arange(100, 120)
    sentences = [
        torch.arange(103, 107),
        torch.arange(107, 111),
        torch.arange(900, 904),
        torch.arange(115, 140),
    ]
    speakers = ["human", "gpt", "human", "human"]
    with caplog.at_level(logging.WARNING):
        _mask_targets(target, [4, 4, 4, 25], speakers, 3, sentences)
    expected = [100, 101, 102, *[IGNORE_INDEX] * 4, 107, 108, 109, 110, *[IGNORE_INDEX] * 9]
    assert target.tolist() == expected
    assert [record.message for record in caplog.records] == [
        "a sentence mismatches the corresponding piece in the conversation"
    ]


def test_the_collator_pads_on_the_right(tokenizer: Any) -> None:
    items = [
        {"input_ids": torch.tensor([1, 5, 6]), "labels": torch.tensor([-100, 5, 6])},
        {"input_ids": torch.tensor([1]), "labels": torch.tensor([1])},
    ]
    batch = DataCollatorForSupervisedDataset(tokenizer=tokenizer)(items)
    pad = tokenizer.pad_token_id
    assert batch["input_ids"].tolist() == [[1, 5, 6], [1, pad, pad]]
    assert batch["labels"].tolist() == [[-100, 5, 6], [1, -100, -100]]
    assert batch["attention_mask"].tolist() == [[True] * 3, [True, False, False]]


def test_new_tokens_begin_at_the_mean(tokenizer: Any) -> None:
    model, own = AutoModelForCausalLM.from_pretrained(MODEL), copy.deepcopy(tokenizer)
    rows = model.get_input_embeddings().weight.detach().clone(), model.lm_head.weight.detach().clone()
    smart_tokenizer_and_embedding_resize({"pad_token": "[PAD]", "mask_token": "[M]"}, own, model)
    assert len(own) == len(tokenizer) + 2 == len(model.lm_head.weight)
    for before, after in zip(rows, (model.get_input_embeddings().weight, model.lm_head.weight), strict=True):
        assert torch.equal(after[:-2], before)
        assert torch.allclose(after[-2:], before.mean(dim=0).expand(2, -1), atol=1e-7)
    smart_tokenizer_and_embedding_resize({}, own, model)
    assert len(own) == len(model.lm_head.weight)


def test_the_old_save_writes_where_the_rank_should() -> None:
    class Trainer:
        def __init__(self, should_save: bool) -> None:
            self.args = type("Args", (), {"should_save": should_save})()
            self.model, self.saved = torch.nn.Linear(2, 2), {}  # type: ignore[var-annotated]

        def _save(self, output_dir: str, state_dict: Any) -> None:
            self.saved[output_dir] = state_dict

    first, other = Trainer(True), Trainer(False)
    for trainer in (first, other):
        safe_save_model_for_hf_trainer(trainer=trainer, output_dir="there")
    assert not other.saved and set(first.saved["there"]) == {"weight", "bias"}
