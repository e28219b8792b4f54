"""Collators: those that only stack are not called, others make each row alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

from fastsft.arguments import TrainingArguments
from fastsft.dataset.collators import CollatedRows, only_stacks
from fastsft.dataset.token_rows import TokenRows
from fastsft.trainer import Trainer
from golden_text import hf_tokenizer
from tiny_models import write_model

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


def same_rows(found: TokenRows, expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for row, item in enumerate(expected):
        assert found.native.ids(row).tolist() == item["input_ids"].tolist()
        learned = [at for begin, end in found.native.learned(row) for at in range(begin, end)]
        assert learned == torch.nonzero(item["labels"] != IGNORED).flatten().tolist()


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


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_collator_of_a_script_makes_the_rows(model: Path, tmp_path: Path, side: str) -> None:
    collator = Supervised(side=side)
    trainer = make_trainer(model, tmp_path / "a", items(), collator)
    same_rows(trainer.train_rows, items())
    same_rows(trainer.eval_rows, items())  # type: ignore[arg-type]
    read = collator.calls
    plain = make_trainer(model, tmp_path / "b", items(), None)
    assert trainer.train().training_loss == plain.train().training_loss
    assert trainer.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]
    assert collator.calls == read  # nothing calls it while it trains
    assert trainer.data_collator is collator
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["attention_mask"].shape == batch["labels"].shape and collator.calls == read + 1


def test_labels_that_a_collator_makes(tokenizer: Any, model: Path, tmp_path: Path) -> None:
    rows = [{"input_ids": item["input_ids"].tolist(), "text": "x"} for item in items()]
    language = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    trainer = make_trainer(model, tmp_path, rows, language)
    same_rows(trainer.train_rows, [{"input_ids": i["input_ids"], "labels": i["input_ids"]} for i in items()])


def test_other_keys_are_handed_over_where_they_are_not_left_out(model: Path, tmp_path: Path) -> None:
    seen: list[set[str]] = []

    def collator(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        seen.append(set(rows[0]))
        return Supervised()(rows)

    make_trainer(model, tmp_path, items(), collator)
    make_trainer(model, tmp_path, items(), collator, remove_unused_columns=False)
    assert seen[0] == {"input_ids", "labels"} and seen[-1] == {"input_ids", "labels", "text"}


def _packed(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([row[name] for row in rows])[None] for name in ("input_ids", "labels")}


def _learning_padding(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    batch = Supervised(pad=7)(rows)
    return {**batch, "labels": torch.where(batch["input_ids"] == 7, 7, batch["labels"])}


def _random(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    batch = Supervised()(rows)
    return {**batch, "labels": torch.where(torch.rand(batch["labels"].shape) < 0.5, IGNORED, batch["labels"])}


def _left_without_a_mask(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    batch = Supervised(side="left")(rows)
    return {name: batch[name] for name in ("input_ids", "labels")}


def _left_before_a_label(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return Supervised(side="left")([{**row, "labels": row["input_ids"]} for row in rows])


def _with_shifted_labels(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    batch = Supervised()(rows)
    return {**batch, "shift_labels": batch["labels"]}


def test_a_collator_may_not_give_what_a_model_computes_with() -> None:
    with pytest.raises(ValueError, match=r"data_collator _with_shifted_labels: .* got shift_labels"):
        CollatedRows(items(), _with_shifted_labels)


def test_positions_that_a_collator_makes() -> None:
    def restarting(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = Supervised()(rows)
        counted = torch.arange(batch["input_ids"].shape[1]) % 3
        return {
            "input_ids": batch["input_ids"], "labels": batch["labels"],
            "position_ids": counted.expand_as(batch["labels"]),
        }  # fmt: skip

    rows = TokenRows.of(items(), 64, lambda items: CollatedRows(items, restarting))
    assert rows.native.num_packed() == len(items())


@pytest.mark.parametrize(
    ("collator", "message"),
    [
        (_left_without_a_mask, "_left_without_a_mask makes something else of a row among others"),
        (_left_before_a_label, "_left_before_a_label makes something else of a row among others"),
        (_packed, r"_packed makes .* of 4 rows, expected a row for each"),
        (_learning_padding, "_learning_padding makes something else of a row among others"),
        (_random, "_random makes something else of a row each time"),
        (lambda rows: rows, "<lambda> gives list, expected input_ids and labels"),
        (lambda rows: {"ids": 1}, "<lambda> gives ids, expected input_ids and labels"),
    ],
)
def test_collators_without_a_place_are_refused(collator: Callable[..., Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"data_collator {message}.*leave it out, and let the items"):
        CollatedRows(items(), collator)


def test_a_collator_that_comes_later(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model, tmp_path, items(), None)
    trainer.data_collator = transformers.default_data_collator
    with pytest.raises(ValueError, match=r"Supervised comes too late.*give it to Trainer\(data_collator="):
        trainer.data_collator = Supervised()
    assert trainer.data_collator is transformers.default_data_collator


def test_rows_that_a_collator_makes_keep_their_rules() -> None:
    def shifted(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = Supervised()(rows)
        return {**batch, "labels": torch.where(batch["labels"] == IGNORED, IGNORED, batch["labels"] + 1)}

    rows = TokenRows.of(items(), 64, lambda rows: CollatedRows(rows, shifted))
    for row, item in enumerate(items()):
        learned = item["labels"] != IGNORED
        assert rows.native.labels(row).tolist() == torch.where(learned, item["labels"] + 1, IGNORED).tolist()
    with pytest.raises(ValueError, match="a length and rows by number"):
        TokenRows.of(iter(items()), 64, lambda rows: CollatedRows(rows, shifted))
