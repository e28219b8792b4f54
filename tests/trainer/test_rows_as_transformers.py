"""Items are understood as by transformers' Trainer: both have the same unrounded losses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import fastsft
from fastsft.data import SupervisedDataset
from fastsft.runtime.messages import collected
from golden_text import hf_tokenizer, read_records
from ranks import run_ranks
from rows_run import (
    LENGTH,
    Item,
    changed,
    losses_of,
    make_model,
    on_rank,
    options,
    ours,
    plain_items,
    smoothed_on_rank,
    theirs,
)


def mask_of(*zeros: int, size: int = LENGTH) -> torch.Tensor:
    mask = torch.ones(size, dtype=torch.long)
    mask[list(zeros)] = 0
    return mask


def ignored(item: Item, *places: int) -> torch.Tensor:
    labels = item["labels"].clone()
    labels[list(places)] = -100
    return labels


def positions(row: int) -> torch.Tensor:
    """Three sequences in a row; the last token of one predicts the first of the next."""
    cut = 3 + row % 3
    return torch.cat([torch.arange(cut), torch.arange(5), torch.arange(LENGTH - cut - 5)])


def multi_turn(item: Item, row: int) -> Item:
    """The end of a sequence is 2, is the padding too, and ends turns inside the row; padded with it."""
    ids, labels = item["input_ids"].clone(), item["labels"].clone()
    ids[5] = 2
    labels[6:8] = -100  # what a user says
    ids[10:] = 2
    labels[5], labels[10], labels[11] = 2, 2, -100
    return {"input_ids": ids, "labels": labels, "attention_mask": ids.ne(2)}


def left_padded(item: Item, row: int) -> Item:
    pad = row % 4
    ids = torch.cat([torch.zeros(pad, dtype=torch.long), item["input_ids"][: LENGTH - pad]])
    labels = torch.cat([torch.full((pad,), -100), item["labels"][: LENGTH - pad]])
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.arange(LENGTH) >= pad}


def all_learned(item: Item, row: int) -> Item:
    return {"labels": item["input_ids"].clone()}


def padding_learned(item: Item, row: int) -> Item:
    """labels = input_ids.clone() of rows that are filled up: masked tokens are learned from."""
    size = LENGTH - row % 4
    ids = item["input_ids"].clone()
    ids[size:] = 0
    return {"input_ids": ids, "labels": ids.clone(), "attention_mask": ids.ne(0).long()}


def left_padding_learned(item: Item, row: int) -> Item:
    """Tokens that see nothing are learned from."""
    ids = item["input_ids"].clone()
    ids[: row % 4] = 0
    return {"input_ids": ids, "labels": ids.clone(), "attention_mask": ids.ne(0)}


CASES: dict[str, Callable[[Item, int], Item]] = {
    "packed": lambda item, row: {"position_ids": positions(row)},
    "packed, all learned": lambda item, row: {"position_ids": positions(row), **all_learned(item, row)},
    "restarts with a mask": lambda item, row: {"position_ids": positions(row), "attention_mask": mask_of()},
    "shifted": lambda item, row: {"position_ids": torch.arange(5, 5 + LENGTH)},
    "every second": lambda item, row: {"position_ids": torch.arange(0, 2 * LENGTH, 2)},
    "every second with a mask": lambda item, row: {
        "position_ids": torch.arange(0, 2 * LENGTH, 2), "attention_mask": mask_of(),
    },
    "backwards": lambda item, row: {"position_ids": torch.arange(LENGTH - 1, -1, -1).int()},
    "a hole in the prompt": lambda item, row: {"attention_mask": mask_of(1, 2)},
    "a hole before a label": lambda item, row: {"attention_mask": mask_of(3, 6, 7)},
    "a hole that is no label": lambda item, row: {
        "attention_mask": mask_of(6, 7).bool(), "labels": ignored(item, 7, 8),
    },
    "some rows with a hole": lambda item, row: {"attention_mask": mask_of(*([6] if row % 3 == 0 else []))},
    "a hole and positions": lambda item, row: {
        "attention_mask": mask_of(5).float(), "position_ids": positions(row),
    },
    "left padding": left_padded,
    "left padding, learned": left_padding_learned,
    "masked at both ends": lambda item, row: {
        "attention_mask": mask_of(0, 1, 10, 11), "labels": ignored(item, 10, 11),
    },
    "everything masked": lambda item, row: {"attention_mask": mask_of(*range(LENGTH))},
    "padding learned": padding_learned,
    "pad is eos": multi_turn,
    "a short mask": lambda item, row: {"attention_mask": torch.ones(8)},
    "a long mask": lambda item, row: {"attention_mask": mask_of(5, 14, size=16)},
    "lists": lambda item, row: {
        "input_ids": item["input_ids"].tolist(), "labels": item["labels"].tolist(),
        "attention_mask": mask_of(4).tolist(), "position_ids": positions(row).tolist(),
    },
    "arrays": lambda item, row: {
        "input_ids": item["input_ids"].numpy(), "labels": item["labels"].numpy(),
        "attention_mask": mask_of(4).numpy().astype(bool),
    },
    "shifted labels": lambda item, row: {"labels": item["labels"].roll(-1)},
    "other labels": lambda item, row: {"labels": torch.where(item["labels"] < 0, -100, 7)},
    "none": lambda item, row: {"attention_mask": None, "position_ids": None},
}  # fmt: skip
SAME_AS_PLAIN = {"shifted", "none"}  # rotary angles are relative


@pytest.fixture(scope="module")
def plain_loss(tmp_path_factory: pytest.TempPathFactory) -> float:
    return ours(plain_items(), tmp_path_factory.mktemp("plain"))[0]


@pytest.mark.variants(
    "[packed]",
    "[every second with a mask]",
    "[backwards]",
    "[a hole before a label]",
    "[a hole that is no label]",
    "left padding",
    "everything masked",
    "padding learned",
    "pad is eos",
    "a long mask",
    "[lists]",
    "shifted labels",
    "[none]",
)
@pytest.mark.parametrize("name", CASES)
def test_an_item(name: str, tmp_path: Path, plain_loss: float) -> None:
    items = changed(CASES[name])
    norm = "global_labels" if items[0]["labels"][0] != -100 else "global_tokens"
    expected, found = theirs(items, tmp_path), ours(items, tmp_path, loss_norm=norm)
    assert len(found) == 5 and found == pytest.approx(expected, rel=1e-5)
    assert (abs(found[0] - plain_loss) < 1e-5) == (name in SAME_AS_PLAIN)


class Masking(dict[str, Any]):
    """Labels of it by name are others than those of its items()."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        return value.masked_fill(value < 20, -100) if name == "labels" else value


@pytest.mark.parametrize("removed", [True, False])
def test_a_mapping_is_read_as_the_collator_reads_it(removed: bool, tmp_path: Path, plain_loss: float) -> None:
    """transformers removes columns through items(), else stacks what the names give."""
    items: list[Item] = [Masking(item) for item in plain_items()]
    expected = theirs(items, tmp_path, remove_unused_columns=removed)
    assert ours(items, tmp_path, remove_unused_columns=removed) == pytest.approx(expected, rel=1e-5)
    assert (abs(expected[0] - plain_loss) < 1e-5) == removed


@pytest.mark.parametrize("checkpointing", [False, True])
def test_packing_is_found_without_a_cache_alone(tmp_path: Path, checkpointing: bool) -> None:
    items = changed(CASES["packed"])
    made = functools.partial(make_model, use_cache=True)
    expected = theirs(items, tmp_path, made(), gradient_checkpointing=checkpointing)
    with collected() as notices:
        found = ours(items, tmp_path, made(), gradient_checkpointing=checkpointing)
    assert found == pytest.approx(expected, rel=1e-5)
    across = [line for line in notices.told if "position_ids of 8 rows restart" in line]
    assert len(across) == (0 if checkpointing else 1)
    assert (abs(found[0] - ours(items, tmp_path)[0]) < 1e-5) == checkpointing


@pytest.mark.covering
@pytest.mark.parametrize("name", ["packed", "a hole before a label", "a hole that is no label", "pad is eos"])
@pytest.mark.parametrize("kind", ["Mistral", "Qwen3"])
def test_other_families_and_windows(tmp_path: Path, kind: str, name: str) -> None:
    items = changed(CASES[name])
    config = {"sliding_window": 4} if kind == "Mistral" else {"head_dim": 10}
    found = ours(items, tmp_path, make_model(kind, **config))
    assert found == pytest.approx(theirs(items, tmp_path, make_model(kind, **config)), rel=1e-5)


@pytest.mark.parametrize("pad", ["</s>", "<unk>"])
def test_rows_of_fastsft_whose_padding_is_in_their_text(tmp_path: Path, pad: str) -> None:
    """FastChat's mask is `input_ids != pad id`, also where the pad id is in a text."""
    words = hf_tokenizer("llama2_legacy", 96)
    words.pad_token = pad
    records = read_records("dummy_conversation")[:6]
    for record in records:
        for message in record["conversations"]:
            message["value"] = message["value"].replace(" ", " <unk> ", 1)
    data = SupervisedDataset(records, words)
    items = [data[row] for row in range(len(data))]
    masks = [item["attention_mask"] for item in items]
    assert any(not mask[: int(mask.nonzero().max())].all() for mask in masks)
    made = functools.partial(make_model, vocab_size=32000)
    expected = theirs(items, tmp_path, made())
    assert ours(items, tmp_path, made()) == pytest.approx(expected, rel=1e-5)
    assert ours(data, tmp_path, made()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.variants("[packed]", "[left padding]")
@pytest.mark.parametrize("name", ["packed", "a hole before a label", "left padding", "padding learned"])
def test_eager_attention(tmp_path: Path, name: str) -> None:
    items = changed(CASES[name])
    made = functools.partial(make_model, attn_implementation="eager")
    norm = "global_labels" if name == "padding learned" else "global_tokens"
    found = ours(items, tmp_path, made(), loss_norm=norm)
    assert found == pytest.approx(theirs(items, tmp_path, made()), rel=1e-5)


def test_what_eager_attention_does_otherwise(tmp_path: Path) -> None:
    items = changed(CASES["left padding, learned"])
    with pytest.raises(ValueError, match=r"row 1: attention_mask leaves a token .* 'eager'"):
        ours(items, tmp_path, make_model(attn_implementation="eager"))


def tokenizer(side: str = "right") -> Any:
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({"[PAD]": 0, "a": 1}, unk_token="[PAD]"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", padding_side=side,
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def test_a_tokenizer_gives_rows_a_mask(tmp_path: Path) -> None:
    items = changed(CASES["packed"])
    found = ours(items, tmp_path, processing_class=tokenizer())
    assert found == pytest.approx(theirs(items, tmp_path, processing_class=tokenizer()), rel=1e-5)
    assert abs(found[0] - ours(items, tmp_path)[0]) > 1e-5
    stacking = {"data_collator": transformers.default_data_collator, "processing_class": tokenizer()}
    assert ours(items, tmp_path, **stacking) == pytest.approx(ours(items, tmp_path), rel=1e-7)
    assert theirs(items, tmp_path, **stacking) == pytest.approx(ours(items, tmp_path), rel=1e-5)


def test_a_collator_that_pads_on_the_left(tmp_path: Path) -> None:
    items = [
        {name: values[: LENGTH - row % 3] for name, values in item.items()}
        for row, item in enumerate(plain_items())
    ]
    collator = transformers.DataCollatorForSeq2Seq(tokenizer("left"))
    found = ours(items, tmp_path, data_collator=collator)
    assert found == pytest.approx(theirs(items, tmp_path, data_collator=collator), rel=1e-5)
    learned = [{**item, "labels": item["input_ids"]} for item in items]
    with pytest.raises(ValueError, match="row 0: label 0 is learned, and DataCollatorForSeq2Seq pads on the"):
        ours(learned, tmp_path, data_collator=collator)


@pytest.mark.parametrize("removed", [True, False])
def test_columns_that_the_model_does_not_take(tmp_path: Path, removed: bool) -> None:
    items = changed(lambda item, row: {"weights": torch.ones(LENGTH), "length": row, "text": "words"})
    with collected() as notices:
        found = ours(items, tmp_path, remove_unused_columns=removed)
    assert found == pytest.approx(theirs(items, tmp_path, remove_unused_columns=removed), rel=1e-5)
    lines = [line for line in notices.told if "the model does not take" in line]
    assert lines[0] == "columns that the model does not take are left out: weights, length, text"


def test_other_names_of_labels(tmp_path: Path, plain_loss: float) -> None:
    items = [{"input_ids": item["input_ids"], "label_ids": item["labels"]} for item in plain_items()]
    assert ours(items, tmp_path)[0] == pytest.approx(plain_loss, rel=1e-9)
    assert theirs(items, tmp_path)[0] == pytest.approx(plain_loss, rel=1e-5)


def test_the_older_count(tmp_path: Path) -> None:
    """Rows whose first label is learned; the count after the shift is that of later releases."""
    items = changed(lambda item, row: all_learned(item, row) if row % 2 else {})
    older = ours(items, tmp_path, loss_norm="global_labels")
    assert older == pytest.approx(theirs(items, tmp_path), rel=1e-5)
    masked = changed(lambda item, row: {"labels": item["input_ids"].clone()} if row % 2 else {})
    for item in masked[1::2]:
        item["labels"][0] = -100
    newer = ours(items, tmp_path)
    assert newer == pytest.approx(theirs(masked, tmp_path), rel=1e-5)
    assert newer[0] / older[0] > 1.01


@pytest.mark.variants("[other labels]", "[packed]")
@pytest.mark.parametrize("name", ["other labels", "a hole before a label", "packed"])
def test_label_smoothing(tmp_path: Path, name: str) -> None:
    """Without accumulation, where transformers 4.57 divides by the targets of the step."""
    items, smooth = changed(CASES[name]), {"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 1}
    assert ours(items, tmp_path, **smooth) == pytest.approx(theirs(items, tmp_path, **smooth), rel=1e-5)
    with pytest.raises(ValueError, match="--loss_norm global_labels: transformers' label smoothing counts"):
        ours(items, tmp_path, **smooth, loss_norm="global_labels")


@pytest.mark.variants("2-True-4")
@pytest.mark.parametrize(
    ("steps", "average", "factor", "said"),
    [
        (1, True, 2, "1 micro-batch on each of 2 ranks undivided"),
        (2, True, 4, "2 micro-batches on each of 2 ranks undivided"),
        (2, False, 2, "2 micro-batches undivided"),
        (1, False, 1, None),
    ],
)
def test_label_smoothing_of_two_ranks(
    tmp_path: Path, steps: int, average: bool, factor: int, said: str | None
) -> None:
    """transformers' first loss is as many times as large as the line says."""
    results = run_ranks(2, smoothed_on_rank, str(tmp_path), steps, average, launched=True)
    for expected, found, _ in results:
        assert factor * found[0] == pytest.approx(expected[0], rel=1e-5)
    told = [line for line in results[0][2] if "--label_smoothing_factor" in line]
    assert len(told) == (said is not None)
    if said is not None:
        assert said in told[0] and told[0].endswith(f"are {factor} times as large")


def test_micro_batches_of_one_row_and_of_all(tmp_path: Path) -> None:
    """General rows and plain ones are packed together, whatever the batch."""
    items = changed(CASES["some rows with a hole"])
    for batch in (1, 8):
        sizes = {"per_device_train_batch_size": batch, "per_device_eval_batch_size": batch}
        found = ours(items, tmp_path, micro_batch_tokens=30, **sizes)
        assert found == pytest.approx(theirs(items, tmp_path, **sizes), rel=1e-5)


@pytest.mark.covering
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("norm", ["global_labels", "global_tokens"])
def test_counts_of_two_ranks(tmp_path: Path, norm: str, average: bool) -> None:
    """Ranks whose rows learn their first token more and less often; 10 rows leave a short group and wrap."""
    items = plain_items(10)
    for item in items[::3]:
        item["labels"] = item["input_ids"].clone()
        if norm == "global_tokens":
            item["labels"][0] = -100
    for expected, found in run_ranks(2, on_rank, items, str(tmp_path), norm, average, launched=True):
        assert len(found) == 5 and found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("norm", ["global_tokens", "global_labels", "micro_batch"])
def test_which_count_holds_is_said(tmp_path: Path, norm: str) -> None:
    with collected() as notices:
        ours(changed(all_learned), tmp_path, loss_norm=norm)
    lines = [line for line in notices.told if "learn their first token" in line]
    other = {"global_tokens": "global_labels", "global_labels": "global_tokens"}.get(norm)
    assert len(lines) == (other is not None)
    assert other is None or (lines[0].startswith("8 rows") and f"--loss_norm {other} " in lines[0])
    with collected() as notices:
        ours(plain_items(), tmp_path, loss_norm=norm)
    assert not [line for line in notices.told if "first token" in line]


def test_messages_name_what_a_script_can_give(tmp_path: Path) -> None:
    """transformers' arguments have no --loss_norm; set as the line says, the losses are the library's."""
    items, losses = changed(all_learned), []
    for norm in ("global_tokens", "global_labels"):
        args = transformers.TrainingArguments(**options(tmp_path / norm))
        if norm == "global_labels":
            args.loss_norm = norm
        trainer = fastsft.Trainer(make_model(), args, train_dataset=items)
        with collected() as notices:
            losses.append(losses_of(trainer, items))
        (line,) = [line for line in notices.told if "learn their first token" in line]
        (other,) = {"global_tokens", "global_labels"} - {norm}
        assert f"args.loss_norm = '{other}' is the other rule" in line
    assert losses[1] == pytest.approx(theirs(items, tmp_path), rel=1e-5) and losses[0] != losses[1]
    args.loss_norm = "labels"
    with pytest.raises(ValueError, match="loss_norm"):
        fastsft.Trainer(make_model(), args, train_dataset=items)


SWITCHING = {
    "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": LENGTH,
    "rotary_pct": 1.0,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["Llama", "GPTNeoX"])
def test_frequencies_that_change_beyond_a_length(tmp_path: Path, kind: str) -> None:
    """transformers' arguments say no longest row: rows up to the length train, a longer one is named."""
    items, args = plain_items(), options(tmp_path)
    expected = theirs(items, tmp_path, make_model(kind, **SWITCHING))
    given = transformers.TrainingArguments(**args)
    trainer = fastsft.Trainer(make_model(kind, **SWITCHING), given, train_dataset=items)
    assert losses_of(trainer, items) == pytest.approx(expected, rel=1e-5)
    items[3] = {name: torch.cat([value, value]) for name, value in items[3].items()}
    with pytest.raises(ValueError, match=f"row 3 has {2 * LENGTH} tokens: beyond {LENGTH} this model's"):
        fastsft.Trainer(make_model(kind, **SWITCHING), given, train_dataset=items).train()
    with pytest.raises(ValueError, match=f"use --model_max_length {LENGTH}, or train with"):
        ours(items, tmp_path, make_model(kind, **SWITCHING))


def test_predictions(tmp_path: Path) -> None:
    for name in ["packed", "a hole before a label", "left padding", "shifted labels"]:
        items = changed(CASES[name])
        args = options(tmp_path, eval_strategy="no")
        expected = transformers.Trainer(make_model(), transformers.TrainingArguments(**args)).predict(items)
        found = fastsft.Trainer(make_model(), fastsft.TrainingArguments(**args)).predict(items)
        np.testing.assert_array_equal(found.label_ids, expected.label_ids)
        seen = np.stack([item.get("attention_mask", mask_of()) for item in items]).astype(bool)
        kept = found.predictions[..., 0] != -100
        assert (kept | ~seen).all()
        np.testing.assert_allclose(found.predictions[kept], expected.predictions[kept], atol=2e-5)
