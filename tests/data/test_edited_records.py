"""Records and items of fastsft's data sets that a script edits in place while it trains, as in FastChat."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastchat.train.train as fastchat
import pytest
import torch
import transformers

import fastsft.data
from fastsft.data.token_rows import TokenRows, untouched_rows
from golden_text import hf_tokenizer, read_records
from trainer_pairs import check_equal, curve, model, ours, theirs, unrounded

LENGTH = 96
VOCABULARY = 32_001
MODULES = {fastchat: theirs, fastsft.data: ours}


@pytest.fixture(autouse=True)
def as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    unrounded(monkeypatch)
    fastchat.local_rank = 0


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return hf_tokenizer("llama2_legacy", LENGTH)


def records(count: int = 8) -> list[Any]:
    taken = read_records("dummy_conversation")[:8]
    return copy.deepcopy([taken[row % 8] for row in range(count)])


def shorten(dataset: Any) -> None:
    """Every message is cut, in its record."""
    for record in dataset.raw_data:
        for message in record["conversations"]:
            message["value"] = message["value"][:20]


class At(transformers.TrainerCallback):
    """Calls `change` at `event` once `step` steps are done."""

    def __init__(self, event: str, step: int, change: Callable[[], None]) -> None:
        def run(args: Any, state: Any, control: Any, **unused: Any) -> None:
            if state.global_step == step:
                change()

        setattr(self, event, run)


def trained(
    module: Any, folder: Path, tokenizer: Any, event: str, step: int, change: Any, kind: str, **flags: Any
) -> list[float]:
    dataset = getattr(module, kind)(records(flags.pop("rows", 8)), tokenizer)
    own = {"model_max_length": LENGTH} if module is fastsft.data else {}
    module_of = model(LENGTH, vocabulary=VOCABULARY)
    trainer = MODULES[module](folder / module.__name__, dataset, module=module_of, **own, **flags)
    trainer.add_callback(At(event, step, lambda: change(dataset)))
    trainer.train()
    return curve(trainer)


@pytest.mark.variants("on_step_end-1-flags6", "on_epoch_end-4-flags3")
@pytest.mark.parametrize(
    ("event", "step", "flags"),
    [
        ("on_train_begin", 0, {}),
        ("on_epoch_begin", 0, {}),
        ("on_epoch_begin", 4, {}),
        ("on_epoch_end", 4, {}),
        ("on_epoch_begin", 4, {"rows": 9, "dataloader_drop_last": True, "num_train_epochs": 3}),
        ("on_epoch_begin", 4, {"dataloader_num_workers": 1}),
        ("on_step_end", 1, {"dataloader_num_workers": 1}),
        (
            "on_epoch_begin", 4,
            {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "num_train_epochs": 3},
        ),
        ("on_step_end", 4, {"gradient_accumulation_steps": 2, "num_train_epochs": 3}),
    ],
)  # fmt: skip
def test_a_callback_that_edits_the_records(
    tmp_path: Path, tokenizer: Any, event: str, step: int, flags: dict[str, Any]
) -> None:
    """What was read stays, what is read later is labelled then; copies of workers do not hear of it."""
    found = [
        trained(module, tmp_path, tokenizer, event, step, shorten, "LazySupervisedDataset", **flags)
        for module in MODULES
    ]
    check_equal(found[1], found[0])


def test_an_edit_in_the_middle_of_an_epoch_is_refused_where_it_would_be_read(
    tmp_path: Path, tokenizer: Any
) -> None:
    with pytest.raises(ValueError, match=r"LazySupervisedDataset: its class, methods or contents were"):
        trained(
            fastsft.data, tmp_path, tokenizer, "on_step_end", 1, shorten, "LazySupervisedDataset"
        )  # fmt: skip


def replace_cache(dataset: Any) -> None:
    dataset.cached_data_dict = {}


BETWEEN: list[Callable[[Any], None]] = [
    lambda dataset: None,
    lambda dataset: dataset.cached_data_dict.clear(),
    replace_cache,
    lambda dataset: dataset.cached_data_dict.pop(next(iter(dataset.cached_data_dict))),
]


@pytest.mark.variants("replace_cache")
@pytest.mark.parametrize("forget", BETWEEN)
def test_an_edit_between_two_runs(tmp_path: Path, tokenizer: Any, forget: Callable[[Any], None]) -> None:
    found = []
    for module, make in MODULES.items():
        train, held = (module.LazySupervisedDataset(records(), tokenizer) for _ in range(2))
        own = {"model_max_length": LENGTH} if make is ours else {}
        trainer = make(
            tmp_path / module.__name__, train, held, module=model(LENGTH, vocabulary=VOCABULARY),
            max_steps=2, **own,
        )  # fmt: skip
        trainer.train()
        trainer.evaluate()
        read = sorted(train.cached_data_dict)
        for dataset in (train, held):
            shorten(dataset)
            forget(dataset)
        sums = [float(train[row]["input_ids"].sum()) for row in read[:3]]
        trainer.train()
        trainer.evaluate()
        found.append(
            [*curve(trainer), *curve(trainer, "eval_loss"), *sums, *read, len(held.cached_data_dict)]
        )
    check_equal(found[1], found[0])


@pytest.mark.variants("before-Supervised")
@pytest.mark.parametrize("kind", ["SupervisedDataset", "LazySupervisedDataset"])
@pytest.mark.parametrize("when", ["before", "epoch"])
def test_items_in_hand_that_are_edited(tmp_path: Path, tokenizer: Any, kind: str, when: str) -> None:
    """All rows were looked at, more than a few; one is edited later."""
    found = []
    for module in MODULES:
        held: list[Any] = []

        def read(dataset: Any, held: list[Any] = held) -> None:
            held += [dataset[row] for row in range(40)]
            if when == "before":
                edit(held)

        def edit(held: list[Any]) -> None:
            for item in held[15:19]:
                item["labels"].numpy()[:80] = -100

        dataset = getattr(module, kind)(records(40), tokenizer)
        read(dataset)
        own = {"model_max_length": LENGTH} if module is fastsft.data else {}
        trainer = MODULES[module](
            tmp_path / module.__name__, dataset, module=model(LENGTH, vocabulary=VOCABULARY), **own
        )
        trainer.add_callback(At("on_epoch_begin", 20, lambda held=held: edit(held)))
        trainer.train()
        found.append(curve(trainer))
    check_equal(found[1], found[0])


@pytest.mark.parametrize("kind", ["SupervisedDataset", "LazySupervisedDataset"])
def test_reading_all_items_keeps_the_rows_native(tokenizer: Any, kind: str) -> None:
    dataset = getattr(fastsft.data, kind)(records(40), tokenizer)
    items = [dataset[row] for row in range(40)]
    assert not TokenRows.from_dataset(dataset, LENGTH).is_read
    for name in ("input_ids", "labels", "attention_mask"):
        value = items[37][name][5].clone()
        items[37][name][5] = 7 if name == "input_ids" else ~value
        assert TokenRows.from_dataset(dataset, LENGTH).is_read and not dataset.still_has([36, 37])
        assert dataset.still_has([36, 38])
        items[37][name][5] = value
        assert not TokenRows.from_dataset(dataset, LENGTH).is_read


def test_rows_that_were_noted_are_items(tokenizer: Any) -> None:
    dataset = fastsft.data.LazySupervisedDataset(records(), tokenizer)
    native = untouched_rows(dataset)
    expected = [dataset._lazy.rows.row(row) for row in range(8)]
    dataset.note_read([1, 5])
    cache = dataset.cached_data_dict
    assert 1 in cache and 2 not in cache and -1 not in cache and untouched_rows(dataset) is native
    shorten(dataset)
    assert torch.equal(dataset[5]["input_ids"], expected[5]["input_ids"])
    assert not torch.equal(dataset[4]["input_ids"], expected[4]["input_ids"])
    assert untouched_rows(dataset) is None and dataset.untouched_rows(label=False) is None
    assert sorted(pickle.loads(pickle.dumps(cache))) == [1, 4, 5] == sorted(cache) and len(cache) == 3
    with pytest.raises(KeyError):
        cache[7]
    cache.clear()
    assert len(cache) == 0 and 1 not in cache and untouched_rows(dataset) is not None
