"""Fields that are members of enumerations with transformers: read by scripts as such, and plain strings."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import transformers

import fastsft
from fastsft.arguments.from_transformers import as_arguments
from fastsft.arguments.given import is_same
from fastsft.arguments.values import Choice

CASES = {
    "eval_strategy": ("no", "steps", "epoch"),
    "logging_strategy": ("no", "steps", "epoch"),
    "save_strategy": ("no", "steps", "epoch", "best"),
    "lr_scheduler_type": ("linear", "cosine", "constant_with_warmup", "reduce_lr_on_plateau"),
    "optim": ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adamw_bnb_8bit", "adamw_8bit"),
    "hub_strategy": ("end", "every_save"),
}
PAIRS = [(name, value) for name, values in CASES.items() for value in values]


def made(kind: Any, folder: Path, **flags: Any) -> Any:
    plateau = flags.get("lr_scheduler_type") == "reduce_lr_on_plateau"
    evaluation = {"eval_strategy": "epoch"} if plateau else {}
    return kind(str(folder), **{"use_cpu": True, "eval_steps": 2, **evaluation, **flags})


@pytest.mark.parametrize(("name", "value"), PAIRS)
def test_value_and_name_are_those_of_transformers(tmp_path: Path, name: str, value: str) -> None:
    theirs = getattr(made(transformers.TrainingArguments, tmp_path, **{name: value}), name)
    ours = getattr(made(fastsft.TrainingArguments, tmp_path, **{name: value}), name)
    assert (ours.value, ours.name) == (theirs.value, theirs.name)
    assert type(ours.value) is str and type(ours.name) is str
    assert ours == theirs and theirs == ours and type(theirs)(ours) is theirs
    again = getattr(made(fastsft.TrainingArguments, tmp_path, **{name: theirs}), name)
    assert type(again) is Choice and again.value == value


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_string_in_all_else(tmp_path: Path, name: str) -> None:
    args = fastsft.TrainingArguments(str(tmp_path), use_cpu=True)
    found = getattr(args, name)
    value = found.value
    assert found == value and hash(found) == hash(value) and {found: 1}[value] == 1
    assert (f"{found}", str(found), repr(found), json.dumps(found)) == (
        value,
        value,
        repr(value),
        f'"{value}"',
    )
    for same in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found), copy.deepcopy(args).__dict__[name]):
        assert same == value and same.value == value
    assert type(args.to_dict()[name]) is str and type(args.to_sanitized_dict()[name]) is str
    assert json.loads(args.to_json_string())[name] == value


@pytest.mark.parametrize("name", CASES)
def test_the_same_word_set_again_is_no_change(tmp_path: Path, name: str) -> None:
    args = fastsft.TrainingArguments(str(tmp_path), use_cpu=True)
    setattr(args, name, getattr(args, name).value)
    before = fastsft.TrainingArguments(str(tmp_path), use_cpu=True).resolved_values()
    assert is_same(args.resolved_values()[name], before[name])
    args.resolve()
    assert type(getattr(args, name)) is Choice


def test_arguments_of_transformers_are_read_so_too(tmp_path: Path) -> None:
    theirs = transformers.TrainingArguments(str(tmp_path), use_cpu=True, save_strategy="epoch")
    ours = as_arguments(theirs)
    assert ours.save_strategy.value == "epoch" and type(ours.save_strategy) is Choice
    ours.save_strategy = theirs.save_strategy
    ours.resolve()
    assert ours.save_strategy.name == "EPOCH"
