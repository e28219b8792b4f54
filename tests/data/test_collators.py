"""Collators: those that only stack are not called, others get whole batches as in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

from fastsft.arguments import TrainingArguments
from fastsft.data.collators import Collation, only_stacks
from fastsft.trainer import Trainer
from golden_text import hf_tokenizer
from tiny_models import write_model
from trainer_pairs import check_equal, losses, ours, theirs, unrounded

IGNORED = -100


def items(count: int = 6) -> list[dict[str, Any]]:
    """Rows of different lengths without padding, as Alpaca's data set has them; the answer is learned."""
    rows = []
    for row in range(count):
        ids = torch.tensor([1, *np.random.default_rng(row).integers(3, 60, 4 + 3 * row)])
        labels = ids.clone()
        labels[: 2 + row] = IGNORED
        rows.append({"input_ids": ids, "labels": labels, "text": "what a person wrote"})
    return rows


class Supervised:
    """In the manner of Alpaca's script, whose `pad` is a token that no row has."""

    def __init__(self, pad: int = 0, side: str = "right") -> None:
        self.pad, self.side = pad, side
        self.calls = 0

    def __call__(self, instances: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        self.calls += 1
        ids, labels = ([instance[name] for instance in instances] for name in ("input_ids", "labels"))
        padded = pad_sequence(ids, batch_first=True, padding_value=self.pad, padding_side=self.side)
        return {
            "input_ids": padded,
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED, padding_side=self.side),
            "attention_mask": padded.ne(self.pad),
        }


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizer = hf_tokenizer("llama2_legacy", 96)
    tokenizer.pad_token = tokenizer.unk_token
    return tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("collators") / "model", "untied")


def make_trainer(model: Any, output: Path, rows: Any, collator: Any, **flags: Any) -> Trainer:
    args = TrainingArguments(
        str(output), use_cpu=True, max_steps=2, per_device_train_batch_size=2, save_strategy="no",
        model_max_length=64, disable_tqdm=True, plot_loss=False, logging_steps=1, **flags,
    )  # fmt: skip
    return Trainer(str(model), args, collator, rows, rows)


def same_rows(batch: Any, expected: list[dict[str, Any]]) -> None:
    assert len(batch) == len(expected)
    for found, item in zip(batch, expected, strict=True):
        assert found.item["input_ids"].tolist() == item["input_ids"].tolist()
        assert found.item["labels"].tolist() == item["labels"].tolist()


def test_collators_that_stack_and_pad_are_not_called(tokenizer: Any) -> None:
    assert all(
        only_stacks(collator)
        for collator in (
            None, transformers.default_data_collator, torch.utils.data.default_collate,
            transformers.DefaultDataCollator(), transformers.DataCollatorWithPadding(tokenizer),
            transformers.DataCollatorForSeq2Seq(tokenizer),
        )
    )  # fmt: skip
    with pytest.raises(ValueError, match="DataCollatorForSeq2Seq has label_pad_token_id 0: padding would be"):
        only_stacks(transformers.DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=0))


def test_a_collator_of_a_script_makes_the_rows(model: Path, tmp_path: Path) -> None:
    collator = Supervised()
    trainer = make_trainer(model, tmp_path / "a", items(), collator)
    plain = make_trainer(model, tmp_path / "b", items(), None)
    assert collator.calls == 0  # nothing is read before it is trained on
    assert trainer.train().training_loss == plain.train().training_loss
    assert collator.calls == 3  # two batches, and the one ahead
    assert trainer.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]
    assert trainer.data_collator is collator
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["attention_mask"].shape == batch["labels"].shape


def test_labels_that_a_collator_makes(tokenizer: Any) -> None:
    rows = [{"input_ids": item["input_ids"].tolist(), "text": "x"} for item in items()]
    language = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    expected = [{"input_ids": item["input_ids"], "labels": item["input_ids"]} for item in items()]
    same_rows(Collation(language)(rows), expected)


def test_other_keys_are_handed_over_where_they_are_not_left_out(model: Path, tmp_path: Path) -> None:
    seen: list[set[str]] = []

    def collator(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        seen.append(set(rows[0]))
        return Supervised()(rows)

    make_trainer(model, tmp_path, items(), collator).evaluate()
    make_trainer(model, tmp_path, items(), collator, remove_unused_columns=False).evaluate()
    assert seen[0] == {"input_ids", "labels"} and seen[-1] == {"input_ids", "labels", "text"}


def _learning_padding(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pads with a token that is learned; without a mask, so that it is attended to."""
    ids = pad_sequence([row["input_ids"] for row in rows], batch_first=True, padding_value=7)
    labels = ids.clone()
    labels[:, 0] = IGNORED
    return {"input_ids": ids, "labels": labels}


def _packed(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([row[name] for row in rows])[None] for name in ("input_ids", "labels")}


def _random(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    batch = Supervised()(rows)
    return {**batch, "labels": torch.where(torch.rand(batch["labels"].shape) < 0.5, IGNORED, batch["labels"])}


def _twice(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return Supervised()([*rows, *rows])


@pytest.mark.covering
@pytest.mark.parametrize("collator", [Supervised(), _learning_padding, _packed, _random, _twice])
@pytest.mark.parametrize("flags", [{}, {"gradient_accumulation_steps": 2}, {"dataloader_num_workers": 2}])
def test_any_collator_of_rows_is_called_as_transformers_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collator: Any, flags: dict[str, Any]
) -> None:
    """Of whole batches, so that one may mix rows, learn its padding, draw numbers or make other rows."""
    unrounded(monkeypatch)
    expected = losses(theirs(tmp_path / "a", items(), collator=collator, **flags))
    check_equal(losses(ours(tmp_path / "b", items(), collator=collator, **flags)), expected)


@pytest.mark.parametrize(
    ("collator", "message"),
    [
        (lambda rows: rows, "<lambda> gives list, expected input_ids and labels"),
        (lambda rows: {"ids": 1}, "<lambda> gives ids, expected input_ids and labels"),
        (lambda rows: {"input_ids": [1], "labels": [1]}, r"<lambda> makes .* expected a row of equal length"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_no_batch(tmp_path: Path, collator: Any, message: str, workers: int) -> None:
    trainer = ours(tmp_path, items(), collator=collator, dataloader_num_workers=workers)
    with pytest.raises(ValueError, match=f"data_collator {message}.*leave it out, and let the items"):
        trainer.train()


def test_a_collator_that_comes_later(model: Path, tmp_path: Path) -> None:
    """Before train() it counts, as in transformers, which calls it when it reads."""
    expected = make_trainer(model, tmp_path / "b", items(), _random).train().training_loss
    trainer = make_trainer(model, tmp_path / "a", items(), None)
    trainer.data_collator = _random
    assert trainer.train().training_loss == expected
    trainer.is_in_train = True
    with pytest.raises(ValueError, match=r"Trainer.data_collator: cannot be set while train\(\) runs"):
        trainer.data_collator = Supervised()


def _shifted(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    batch = Supervised()(rows)
    return {**batch, "labels": torch.where(batch["labels"] == IGNORED, IGNORED, batch["labels"] + 1)}


def _restarting(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    batch = Supervised()(rows)
    counted = torch.arange(batch["input_ids"].shape[1]) % 3
    return {**batch, "position_ids": counted.expand_as(batch["labels"])}


def _on_the_left(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return Supervised(side="left")(rows)


@pytest.mark.parametrize("collator", [_shifted, _restarting, _on_the_left])
def test_rows_of_a_collator_mean_what_items_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collator: Any
) -> None:
    unrounded(monkeypatch)
    expected = losses(theirs(tmp_path / "a", items(), collator=collator))
    check_equal(losses(ours(tmp_path / "b", items(), collator=collator)), expected)


def test_a_collator_may_not_give_what_a_model_computes_with(tmp_path: Path) -> None:
    def with_shifted_labels(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = Supervised()(rows)
        return {**batch, "shift_labels": batch["labels"]}

    with pytest.raises(ValueError, match=r"data_collator with_shifted_labels: .* got shift_labels"):
        ours(tmp_path, items(), collator=with_shifted_labels).train()


def test_a_collator_needs_a_data_set(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a length and rows by number"):
        ours(tmp_path, iter(items()), collator=_shifted)


@pytest.mark.parametrize("names", [["input_ids"], ["input_ids", "attention_mask"]])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_that_no_mask_hides(
    side: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the left tokens attend to it, where the tokenizer gives no mask: the rows are the collator's."""
    unrounded(monkeypatch)
    tokenizer = hf_tokenizer("llama2_legacy", 96)
    tokenizer.pad_token, tokenizer.padding_side, tokenizer.model_input_names = "<unk>", side, names
    rows = [{"input_ids": item["input_ids"], "labels": item["labels"]} for item in items()]
    collator = transformers.DataCollatorForSeq2Seq(tokenizer)
    assert only_stacks(collator) == (side == "right" or "attention_mask" in names)
    expected = losses(theirs(tmp_path / "theirs", rows, collator=collator))
    check_equal(losses(ours(tmp_path / "ours", rows, collator=collator)), expected)
    if not only_stacks(collator):
        collator.tokenizer.padding_side = "right"
        other = losses(theirs(tmp_path / "other", rows, collator=collator))
        assert other != pytest.approx(expected, rel=1e-4)
