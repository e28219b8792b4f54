"""fastsft's data sets that scripts changed: items follow attributes as in FastChat, training the items."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastchat.train.train as fastchat
import pytest
import torch
import transformers
from torch.utils.data import ConcatDataset, Subset, random_split

import fastsft.data
from fastsft.data.token_rows import TokenRows
from golden_text import hf_tokenizer, read_records
from trainer_pairs import check_equal, curve, losses, model, ours, theirs, unrounded

LENGTH = 96
VOCABULARY = 32_001


@pytest.fixture(autouse=True)
def as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    unrounded(monkeypatch)
    fastchat.local_rank = 0


@pytest.fixture(scope="module")
def tokenizers() -> tuple[Any, Any]:
    return hf_tokenizer("llama2_legacy", LENGTH), hf_tokenizer("llama2_legacy", 60)


def records() -> list[Any]:
    return read_records("dummy_conversation")[:8]


def half_labels(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    labels = found["labels"].clone()
    labels[:60] = -100
    return {**found, "labels": labels}


def made(module: Any, kind: str, tokenizer: Any) -> Any:
    return getattr(module, kind)(records(), tokenizer)


def subclass_item(module: Any, kind: str, tokenizer: Any) -> Any:
    class Derived(getattr(module, kind)):  # type: ignore[misc]
        def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
            return half_labels(super().__getitem__(row))

    return Derived(records(), tokenizer)


def subclass_length(module: Any, kind: str, tokenizer: Any) -> Any:
    class Derived(getattr(module, kind)):  # type: ignore[misc]
        def __len__(self) -> int:
            return 4

    return Derived(records(), tokenizer)


def subclass_init(module: Any, kind: str, tokenizer: Any) -> Any:
    class Derived(getattr(module, kind)):  # type: ignore[misc]
        def __init__(self) -> None:
            torch.utils.data.Dataset.__init__(self)
            source = made(module, kind, tokenizer)
            names = ("raw_data", "tokenizer") if kind.startswith("Lazy") else ("input_ids", "labels")
            self.cached_data_dict: dict[int, Any] = {}
            for name in (*names, "attention_mask")[: 2 if kind.startswith("Lazy") else 3]:
                setattr(self, name, getattr(source, name))

    return Derived()


def subset(module: Any, kind: str, tokenizer: Any) -> Any:
    return Subset(made(module, kind, tokenizer), [6, 1, 3, 3])


def concat(module: Any, kind: str, tokenizer: Any) -> Any:
    return ConcatDataset([made(module, kind, tokenizer), subset(module, kind, tokenizer)])


def split(module: Any, kind: str, tokenizer: Any) -> Any:
    return random_split(made(module, kind, tokenizer), [5, 3], torch.Generator().manual_seed(1))[0]


def peeked(module: Any, kind: str, tokenizer: Any) -> Any:
    dataset = made(module, kind, tokenizer)
    assert dataset[2]["labels"].shape == (LENGTH,)
    return dataset


def edited_item(module: Any, kind: str, tokenizer: Any) -> Any:
    dataset = made(module, kind, tokenizer)
    for row in range(8):
        dataset[row]["labels"][:60] = -100
    return dataset


def edited_item_by_numpy(module: Any, kind: str, tokenizer: Any) -> Any:
    dataset = made(module, kind, tokenizer)
    dataset[5]["labels"].numpy()[:90] = -100
    return dataset


MADE = [
    made, subclass_item, subclass_length, subclass_init, subset, concat, split, peeked, edited_item,
    edited_item_by_numpy,
]  # fmt: skip


@pytest.mark.variants("concat-Sup", "subclass_item-Lazy", "peeked-Sup", "subset-Sup", "edited_item-Sup")
@pytest.mark.parametrize("kind", ["SupervisedDataset", "LazySupervisedDataset"])
@pytest.mark.parametrize("make", MADE)
def test_a_data_set_made_of_fastchats(
    tmp_path: Path, tokenizers: Any, kind: str, make: Callable[..., Any]
) -> None:
    check_same(tmp_path, lambda module: make(module, kind, tokenizers[0]))


def edit_labels(dataset: Any, tokenizer: Any) -> None:
    dataset.labels[:, :60] = -100


def edit_labels_by_numpy(dataset: Any, tokenizer: Any) -> None:
    dataset.labels.numpy()[:, :60] = -100


def set_labels(dataset: Any, tokenizer: Any) -> None:
    labels = dataset.labels.clone()
    labels[:, :60] = -100
    dataset.labels = labels


def cut_ids(dataset: Any, tokenizer: Any) -> None:
    for name in ("input_ids", "labels", "attention_mask"):
        setattr(dataset, name, getattr(dataset, name)[:5])


def edit_ids_behind_a_view(dataset: Any, tokenizer: Any) -> None:
    ids, labels = dataset.input_ids[:, 10:20], dataset.labels
    ids[labels[:, 10:20] == -100] = 77


def cut_records(dataset: Any, tokenizer: Any) -> None:
    dataset.raw_data = dataset.raw_data[:5]


def cut_records_in_place(dataset: Any, tokenizer: Any) -> None:
    del dataset.raw_data[5:]


def edit_record(dataset: Any, tokenizer: Any) -> None:
    dataset.raw_data[2]["conversations"][1]["value"] = "Nobody knows that."


def set_tokenizer(dataset: Any, tokenizer: Any) -> None:
    dataset.tokenizer = tokenizer


def set_cached(dataset: Any, tokenizer: Any) -> None:
    dataset.cached_data_dict[3] = half_labels(dataset[0])


def replace_cache(dataset: Any, tokenizer: Any) -> None:
    dataset.cached_data_dict = {row: half_labels(dataset[row]) for row in range(8)}


EDITS = {
    "SupervisedDataset": [edit_labels, edit_labels_by_numpy, set_labels, cut_ids, edit_ids_behind_a_view],
    "LazySupervisedDataset": [
        cut_records, cut_records_in_place, edit_record, set_tokenizer, set_cached, replace_cache,
    ],
}  # fmt: skip


@pytest.mark.variants(
    "edit_ids_behind_a_view-before Trainer",
    "replace_cache-before Trainer",
    "set_tokenizer-before Trainer",
    "SupervisedDataset-edit_labels-before Trainer",
    "cut_records-before train",
)
@pytest.mark.parametrize("when", ["before Trainer", "before train"])
@pytest.mark.parametrize(("kind", "edit"), [(kind, edit) for kind, edits in EDITS.items() for edit in edits])
def test_a_data_set_that_is_changed(
    tmp_path: Path, tokenizers: Any, kind: str, edit: Callable[..., None], when: str
) -> None:
    def make(module: Any) -> Any:
        dataset = made(module, kind, tokenizers[0])
        if when != "before train":
            edit(dataset, tokenizers[1])
        return dataset

    later = (lambda dataset: edit(dataset, tokenizers[1])) if when == "before train" else None
    check_same(tmp_path, make, later)


@pytest.mark.covering
@pytest.mark.parametrize("kind", ["SupervisedDataset", "LazySupervisedDataset"])
@pytest.mark.parametrize("method", ["__getitem__", "__len__", "__getitems__"])
def test_a_method_of_the_class_that_is_replaced(
    tmp_path: Path, tokenizers: Any, monkeypatch: pytest.MonkeyPatch, kind: str, method: str
) -> None:
    for module in (fastchat, fastsft.data):
        read = getattr(module, kind).__getitem__
        new = {
            "__getitem__": lambda self, row, read=read: half_labels(read(self, row)),
            "__len__": lambda self: 6,
            "__getitems__": lambda self, rows: [half_labels(self[row]) for row in rows],
        }[method]
        monkeypatch.setattr(getattr(module, kind), method, new, raising=False)
    check_same(tmp_path, lambda module: made(module, kind, tokenizers[0]))


@pytest.mark.parametrize("kind", ["SupervisedDataset", "LazySupervisedDataset"])
def test_a_method_of_the_object_that_is_replaced(tmp_path: Path, tokenizers: Any, kind: str) -> None:
    """`ds[i]` does not look at the object, a loader that asks for __getitems__ does."""

    def make(module: Any) -> Any:
        dataset = made(module, kind, tokenizers[0])
        dataset.__getitem__ = lambda row: {}
        dataset.__getitems__ = lambda rows: [half_labels(dataset[row]) for row in rows]
        return dataset

    check_same(tmp_path, make)


def test_what_nobody_changed_is_native(tokenizers: Any) -> None:
    for kind in ("SupervisedDataset", "LazySupervisedDataset"):
        for make in (made, peeked):
            assert not TokenRows.from_dataset(make(fastsft.data, kind, tokenizers[0]), LENGTH).is_read
        rows = TokenRows.from_dataset(subset(fastsft.data, kind, tokenizers[0]), LENGTH)
        assert rows.is_read and rows.is_exact and len(rows) == 4


class Once(transformers.TrainerCallback):
    """Changes the data set at an event of an epoch."""

    def __init__(self, event: str, epoch: float, change: Callable[[], None]) -> None:
        def run(args: Any, state: Any, control: Any, **unused: Any) -> None:
            if state.epoch == epoch:
                change()

        setattr(self, event, run)


def test_a_callback_that_changes_it_at_an_epoch(tmp_path: Path, tokenizers: Any) -> None:
    found = []
    for module, make in ((fastchat, theirs), (fastsft.data, ours)):
        dataset = made(module, "SupervisedDataset", tokenizers[0])
        trainer = make(tmp_path / module.__name__, dataset, **flags())
        trainer.add_callback(Once("on_epoch_begin", 1, lambda dataset=dataset: edit_labels(dataset, None)))
        found.append(losses(trainer))
    check_equal(found[1], found[0])


def test_a_callback_that_changes_it_within_an_epoch_is_refused(tmp_path: Path, tokenizers: Any) -> None:
    dataset = made(fastsft.data, "SupervisedDataset", tokenizers[0])
    trainer = ours(tmp_path, dataset, **flags())
    trainer.add_callback(Once("on_step_end", 0.5, lambda: edit_labels(dataset, None)))
    with pytest.raises(ValueError, match=r"SupervisedDataset: its class, methods or contents were changed"):
        trainer.train()


def test_evaluation_follows_the_items(tmp_path: Path, tokenizers: Any) -> None:
    found = []
    for module, make in ((fastchat, theirs), (fastsft.data, ours)):
        dataset = made(module, "SupervisedDataset", tokenizers[0])
        trainer = make(tmp_path / module.__name__, dataset, dataset, **flags())
        trainer.evaluate()
        edit_labels(dataset, None)
        trainer.evaluate()
        trainer.evaluate(subclass_item(module, "LazySupervisedDataset", tokenizers[0]))
        predicted = trainer.predict(Subset(dataset, [4, 1]))
        found.append([*curve(trainer, "eval_loss"), predicted.metrics["test_loss"]])
        assert predicted.label_ids.shape[0] == 2
    check_equal(found[1], found[0])


def flags() -> dict[str, Any]:
    return {"module": model(LENGTH, vocabulary=VOCABULARY)}


def check_same(
    tmp_path: Path, make: Callable[[Any], Any], later: Callable[[Any], None] | None = None
) -> None:
    """`make(module)` trains alike with FastChat's module in transformers, and fastsft's in fastsft."""
    found = []
    for module, trainer_of in ((fastchat, theirs), (fastsft.data, ours)):
        dataset = make(module)
        extra = {"model_max_length": LENGTH} if trainer_of is ours else {}
        trainer = trainer_of(tmp_path / module.__name__, dataset, **flags(), **extra)
        if later is not None:
            later(dataset)
        found.append(losses(trainer))
    check_equal(found[1], found[0])
