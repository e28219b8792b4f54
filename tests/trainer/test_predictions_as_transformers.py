"""Predictions as a hook, a metric and a caller of `predict` see them: transformers' own, padding included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from fastsft.data import SupervisedDataset
from fastsft.data.item_rules import ItemRules
from golden_text import hf_tokenizer, read_records
from ranks import run_ranks
from trainer_pairs import Plain, item, model, ours, theirs

Item = dict[str, torch.Tensor]
ROWS = 7


def rows_of(widths: tuple[int, ...] = (24, 24, 24)) -> list[Item]:
    """Return rows of which each batch of three has its own width."""
    return [item(row, width=widths[row // 3]) for row in range(ROWS)]


def left_padded() -> list[Item]:
    shifts = [int((~each["attention_mask"]).sum()) for each in rows_of()]
    return [
        {name: value.roll(shift) for name, value in each.items()}
        for each, shift in zip(rows_of(), shifts, strict=True)
    ]


def with_a_hole() -> list[Item]:
    rows = rows_of()
    for each in rows:
        each["attention_mask"][2] = False
    return rows


def unlabelled() -> list[Item]:
    return [{name: each[name] for name in ("input_ids", "attention_mask")} for each in rows_of((24, 16, 9))]


def unmasked() -> list[Item]:
    return [{name: each[name] for name in ("input_ids", "labels")} for each in rows_of()]


SETS = {
    "right": rows_of, "left": left_padded, "a hole": with_a_hole, "no labels": unlabelled,
    "no mask": unmasked, "widths": lambda: rows_of((24, 16, 9)),
}  # fmt: skip


def stacked(items: list[Item]) -> Item:
    """Stack items, as a collator of a script."""
    return {name: torch.stack([each[name] for each in items]) for name in items[0]}


def filled(items: list[Item]) -> Item:
    """Pad items to the longest item of the batch and stack them, as a collator of a script."""
    values = {"input_ids": 3, "labels": -100, "attention_mask": 0}
    return {
        name: torch.nn.utils.rnn.pad_sequence([each[name] for each in items], True, value)
        for name, value in values.items()
    }


def seen(trainer: Any, rows: list[Item]) -> tuple[list[Any], list[Any]]:
    """Return the calls of hook, metric and callback with their arguments, and the predicted arrays."""
    calls: list[Any] = []

    class Steps(transformers.TrainerCallback):
        def on_prediction_step(self, *_: Any, **__: Any) -> None:
            calls.append("step")

    def hook(logits: torch.Tensor, labels: Any) -> Any:
        calls.append(("hook", logits.shape, logits.dtype, labels if labels is None else labels.tolist()))
        return logits.argmax(-1), [logits.sum(-1), logits.mean(1)]

    def metric(predicted: Any) -> dict[str, Any]:
        logits, labels = predicted
        assert predicted.inputs is None and predicted[1] is predicted.label_ids is labels
        calls.append(("metric", logits.shape, logits.dtype, labels.tolist()))
        return {"mean": logits.astype(np.float64).mean()}

    trainer.add_callback(Steps())
    whole = trainer.predict(rows)
    trainer.preprocess_logits_for_metrics = hook
    chosen, (sums, means) = trainer.predict(rows).predictions
    trainer.preprocess_logits_for_metrics, trainer.compute_metrics = None, metric
    means_of_all = trainer.evaluate(rows).get("eval_mean", 0.0)
    empty = np.zeros(0)
    labels = empty if whole.label_ids is None else whole.label_ids
    return calls, [whole.predictions, labels, chosen, sums, means, np.asarray(means_of_all)]


def check_same(found: Any, expected: Any) -> None:
    assert found[0] == expected[0]
    for ours_, theirs_ in zip(found[1], expected[1], strict=True):
        assert ours_.shape == theirs_.shape and ours_.dtype == theirs_.dtype
        np.testing.assert_allclose(ours_, theirs_, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("collator", [None, stacked])
@pytest.mark.parametrize("name", SETS)
def test_all_see_what_transformers_gives(tmp_path: Path, name: str, collator: Any) -> None:
    rows = SETS[name]()
    made = [make(tmp_path, Plain(), collator=collator) for make in (ours, theirs)]
    check_same(*[seen(trainer, rows) for trainer in made])


def test_a_collator_that_pads(tmp_path: Path) -> None:
    """To a multiple of eight, with what its tokenizer pads with."""
    tokenizer = hf_tokenizer("llama2_legacy", 96)
    collator = transformers.DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=8)
    rows = [{key: value[: 9 + row].tolist() for key, value in item(row).items()} for row in range(ROWS)]
    made = [make(tmp_path, Plain(), collator=collator) for make in (ours, theirs)]
    check_same(*[seen(trainer, rows) for trainer in made])


def test_the_type_of_a_bfloat16_model_reaches_the_hook(tmp_path: Path) -> None:
    types = []

    def hook(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        types.append(logits.dtype)
        return logits

    for make in (theirs, ours):
        trainer = make(tmp_path, Plain(), module=model().to(torch.bfloat16))
        trainer.preprocess_logits_for_metrics = hook
        assert trainer.predict(Plain(2)).predictions.dtype == np.float32
    assert types == [torch.bfloat16] * 2


def test_eager_attention_in_front_of_a_row_is_refused(tmp_path: Path) -> None:
    module = model()
    module.set_attn_implementation("eager")
    trainer = ours(tmp_path, Plain(), module=module)
    assert trainer.predict(rows_of()).predictions.shape[:2] == (ROWS, 24)
    with pytest.raises(ValueError, match=r"row 0: outputs in front of its first token.*'eager'.*sdpa"):
        trainer.predict(left_padded())


def test_eager_attention_with_a_window_is_named_by_its_argument() -> None:
    rules = ItemRules(attention="eager with a sliding window")
    with pytest.raises(ValueError, match="has attn_implementation 'eager' and a sliding window, which gives"):
        rules.check_outputs(hides=True, blind=False, row=0)


def on_rank(groups: dict[str, str], directory: Path) -> Any:
    """Return the results of `seen` on this rank, by fastsft and by transformers."""
    strategy = {ours: "full_shard", theirs: ""}
    return [
        seen(make(directory, Plain(), collator=filled, fsdp=strategy[make]), rows_of((24, 16, 9)))
        for make in (ours, theirs)
    ]


def test_two_ranks_see_what_transformers_gives(tmp_path: Path) -> None:
    """In batches of three of seven rows, ranks have different widths, and the last batch is filled up."""
    for found, expected in run_ranks(2, on_rank, tmp_path, launched=True):
        check_same(found, expected)


def test_predictions_of_fastchat_rows_are_as_wide_as_their_padding(tmp_path: Path) -> None:
    tokenizer = hf_tokenizer("llama2_legacy", 96)
    dataset = SupervisedDataset(read_records("dummy_conversation")[:2], tokenizer)
    module = model(positions=128, vocabulary=len(tokenizer))
    found = ours(tmp_path, Plain(), module=module, model_max_length=96).predict(dataset)
    expected = theirs(tmp_path, Plain(), module=module).predict(dataset)
    assert found.predictions.shape == (2, 96, len(tokenizer))
    np.testing.assert_allclose(found.predictions, expected.predictions, rtol=1e-4, atol=1e-4)
    assert np.array_equal(found.label_ids, expected.label_ids)
