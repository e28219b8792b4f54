"""Data sets that are not fastsft's own, as native rows."""

import dataclasses
from collections import UserDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.data.item_rows import append_item
from fastsft.data.item_rules import ItemRules, check_inputs
from fastsft.data.token_rows import TokenRows
from fastsft.runtime.messages import collected


def item(ids, labels, padding=0):
    return {
        "input_ids": torch.tensor(ids + [0] * padding),
        "labels": torch.tensor(labels + [-100] * padding),
        "attention_mask": torch.tensor([True] * len(ids) + [False] * padding),
    }


def test_items_become_rows_without_padding():
    items = [
        item([5, 6, 7, 8], [-100, 6, -100, 8], 2),
        item([9, 9], [-100, -100], 4),
        item([1, 2, 3], [1, 2, 3], 3),
    ]
    rows = TokenRows.from_dataset(items, 512)
    assert rows.lengths.tolist() == [4, 2, 3]
    # Position 0 has nothing before it and is never a target; it is a label all the same.
    assert rows.target_counts.tolist() == [2, 0, 2]
    assert rows.label_counts.tolist() == [2, 0, 3]
    assert rows.native.ids(0).tolist() == [5, 6, 7, 8]
    assert rows.native.learned(0) == [(1, 2), (3, 4)]
    assert rows.padded_length == 6 and len(rows) == 3


def test_a_masked_token_inside_a_text_stays():
    masked = item([5, 0, 7], [-100, -100, 7])
    masked["attention_mask"] = torch.tensor([True, False, True])
    assert TokenRows.from_dataset([masked], 8).native.ids(0).tolist() == [5, 0, 7]


def test_lists_and_arrays_without_a_mask():
    rows = TokenRows.from_dataset([{"input_ids": [1, 2], "labels": np.array([-100, 2])}], 8)
    assert rows.lengths.tolist() == [2] and rows.target_counts.tolist() == [1]


def test_labels_that_are_not_the_ids():
    rows = TokenRows.from_dataset([item([5, 6], [-100, 6]), item([5, 6, 7], [-100, 6, 68], 2)], 8)
    assert rows.native.labels(1).tolist() == [-100, 6, 68]
    assert rows.target_counts.tolist() == [1, 2] and rows.lengths.tolist() == [2, 3]
    with pytest.raises(ValueError, match="the data has token id 68, the model knows 68"):
        rows.check_ids(68)
    rows.check_ids(69)


def test_left_padding():
    left = item([0, 5, 6], [-100, -100, 6])
    left["attention_mask"] = torch.tensor([False, True, True])
    native = TokenRows.from_dataset([left], 8).native
    assert (native.ids(0).tolist(), native.leading(0), native.extents().tolist()) == ([5, 6], 1, [3])
    left["labels"][0] = 0  # counted, and so not left away
    assert TokenRows.from_dataset([left], 8).native.label_counts().tolist() == [2]


class Attributes:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


@pytest.mark.parametrize("form", ["dict", "UserDict", "object", "dataclass", "gradient", "unsigned"])
def test_forms_of_an_item(form):
    plain: Any = {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}
    if form == "UserDict":
        plain = UserDict(plain)
    elif form == "object":
        plain = Attributes(**plain)
    elif form == "dataclass":
        plain = dataclasses.make_dataclass("Features", plain)(**plain)
    elif form == "gradient":
        mask = torch.ones(3, requires_grad=True)
        plain = {name: torch.tensor(values) for name, values in plain.items()} | {"attention_mask": mask}
    elif form == "unsigned":
        plain["input_ids"] = np.array([1, 2, 3], np.uint16)
    native = _C.TokenDataset()
    assert append_item(native, plain, 0) == 3
    assert native.ids(0).tolist() == [1, 2, 3] and native.learned(0) == [(1, 3)]


THREE = {"input_ids": [1, 2, 3], "labels": [1, 2, 3]}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"input_ids": [1, -2, 3]}, "row 7: token 1 has id -2, expected 0 or more"),
        ({"labels": [1, -1, 3]}, "row 7: label 1 is -1, expected -100 or a token id"),
        ({"labels": [1, 2**40, 3]}, f"row 7: label 1 is {2**40}, expected -100"),
        ({"labels": [1.0, 2.0, 3.0]}, "row 7: expected integers in labels, got float64"),
        ({"labels": [1, 2]}, r"row 7: expected input_ids and labels of one length, got \[3\] and \[2\]"),
        ({"labels": None}, "row 7: expected input_ids and labels, got input_ids, labels"),
        ({"position_ids": [0, 1]}, r"row 7: expected position_ids .* \[3\], got \[2\]"),
        ({"position_ids": [[0, 1, 2]]}, r"row 7: expected position_ids .* \[3\], got \[1, 3\]"),
        ({"position_ids": [0.0, 1.0, 2.0]}, "row 7: expected integers in position_ids, got float64"),
        ({"position_ids": [0, -1, 2]}, "row 7: position_ids has -1 at 1, expected 0 to 1048575"),
        ({"position_ids": [0, 1, 1 << 20]}, "row 7: position_ids has 1048576 at 2, expected 0 to 1048575"),
        ({"attention_mask": np.ones((3, 3))}, r"one number a token, got shape \[3, 3\], float64; .* causal"),
        ({"attention_mask": torch.ones(1, 3, 3)}, r"one number a token, got shape \[1, 3, 3\], float32"),
        ({"attention_mask": [[1], [1, 1]]}, r"one number a token, got shape \[2\], object"),
        ({"attention_mask": [0.0, -np.inf, 0.0]}, "expected 0 and 1 in attention_mask, got -inf"),
        ({"inputs_embeds": torch.ones(3, 8)}, "row 7: expected input_ids, .* got inputs_embeds"),
        ({"use_cache": False}, "row 7: expected input_ids, .* got use_cache"),
    ],
)
def test_refused_items(parts, message):
    with pytest.raises(ValueError, match=message) as refused:
        append_item(_C.TokenDataset(), {**THREE, **parts}, 7)
    assert "\n" not in str(refused.value)


def test_what_is_no_item():
    with pytest.raises(ValueError, match="row 0: expected a mapping with input_ids and labels, got tuple"):
        append_item(_C.TokenDataset(), ([1], [1]), 0)


def test_keys_that_differ():
    rules, native = ItemRules(), _C.TokenDataset()
    append_item(native, THREE, 0, rules)
    append_item(native, {**THREE, "attention_mask": None}, 1, rules)
    with pytest.raises(ValueError, match="row 2: expected the keys of the first item, input_ids, labels"):
        append_item(native, {**THREE, "attention_mask": [1, 1, 1]}, 2, rules)


def test_one_line_names_the_columns_that_are_dropped():
    rules, native = ItemRules(), _C.TokenDataset()
    with collected() as notices:
        for row in range(3):
            append_item(native, {**THREE, "text": "a", "shift_labels": [1], "weights": 1.0}, row, rules)
        append_item(native, {**THREE, "id": 1}, 3, rules)
    assert notices.told == ["columns that the model does not take are left out: text, shift_labels, weights"]


@pytest.mark.parametrize("kept", ["--remove_unused_columns False", "no dict"])
def test_keywords_that_reach_the_model(kept):
    rules = ItemRules(removes_columns=kept == "no dict")
    words = {**THREE, "shift_labels": [1, 2, 3]}
    with pytest.raises(ValueError, match=r"row 0: .* got shift_labels, .* --remove_unused_columns True"):
        append_item(_C.TokenDataset(), UserDict(words) if kept == "no dict" else words, 0, rules)


def test_every_keyword_of_transformers_is_known():
    """What the parts of a model name among their arguments, they may compute with."""
    import inspect

    from transformers import MistralForCausalLM
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.loss.loss_utils import ForCausalLMLoss, fixed_cross_entropy
    from transformers.models.mistral import modeling_mistral as mistral

    parts = [
        MistralForCausalLM.forward, mistral.MistralModel.forward, mistral.MistralDecoderLayer.forward,
        mistral.MistralAttention.forward, sdpa_attention_forward, ForCausalLMLoss, fixed_cross_entropy,
        mistral.eager_attention_forward,
    ]  # fmt: skip
    names = {name for part in parts for name in inspect.signature(part).parameters} - {"self"}
    known = {"input_ids", "labels", "attention_mask", "position_ids"}
    for name in names - known:
        with pytest.raises(ValueError, match=f"got {name},"):
            check_inputs([name], "row 0", removed=False)


def test_rules_of_a_trainer(tmp_path):
    args = TrainingArguments(str(tmp_path), use_cpu=True)
    tokenizer = SimpleNamespace(model_input_names=["input_ids", "attention_mask"], padding_side="left")

    def rules(collator=None, processing_class=None):
        return ItemRules.from_trainer(args, collator, processing_class, SimpleNamespace())

    padding = transformers.DataCollatorForSeq2Seq(tokenizer)
    assert not rules().adds_mask and rules(None, tokenizer).adds_mask
    assert not rules(lambda items: items, tokenizer).adds_mask
    assert rules(padding).adds_mask
    assert rules(padding).pads_left == "DataCollatorForSeq2Seq"
    tokenizer.model_input_names = ["input_ids"]
    assert not rules(None, tokenizer).adds_mask
