"""Names that a script binds in the module are what train() uses, as in FastChat's module: the same losses."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from e2e.both_modules import both, losses_of

_TEMPLATE = "<<{}>> {}\n"


def own_preprocess(sources: Any, tokenizer: Any) -> dict[str, torch.Tensor]:
    """Another template than vicuna's, and all of it but the first token learned."""
    texts = ["".join(_TEMPLATE.format(s["from"], s["value"]) for s in source) for source in sources]
    ids = tokenizer(
        texts, return_tensors="pt", padding="max_length", max_length=tokenizer.model_max_length,
        truncation=True,
    ).input_ids  # fmt: skip
    labels = ids.clone()
    labels[:, 0] = -100
    labels[ids == tokenizer.pad_token_id] = -100
    return {"input_ids": ids, "labels": labels, "attention_mask": ids.ne(tokenizer.pad_token_id)}


def with_preprocess(module: ModuleType) -> None:
    module.preprocess = own_preprocess  # type: ignore[attr-defined]


def with_wrapped_preprocess(module: ModuleType) -> None:
    """The module's own labels, of which a part is taken away."""
    original = module.preprocess  # type: ignore[attr-defined]

    def preprocess(sources: Any, tokenizer: Any) -> Any:
        made = original(sources, tokenizer)
        made["labels"][:, :80] = -100
        return made

    module.preprocess = preprocess  # type: ignore[attr-defined]


class Halves(torch.utils.data.Dataset[Any]):
    """The first half of every row that own_preprocess makes."""

    def __init__(self, raw_data: Any, tokenizer: Any) -> None:
        self.made = own_preprocess([record["conversations"] for record in raw_data], tokenizer)

    def __len__(self) -> int:
        return len(self.made["labels"])

    def __getitem__(self, row: int) -> Any:
        return {name: column[row][:128] for name, column in self.made.items()}


def with_datasets(module: ModuleType) -> None:
    module.LazySupervisedDataset = module.SupervisedDataset = Halves  # type: ignore[attr-defined]


def with_maker(module: ModuleType) -> None:
    """A maker without eval_dataset, with a collator, as that of v0.1."""

    def make(tokenizer: Any, data_args: Any) -> dict[str, Any]:
        records = json.loads(Path(data_args.data_path).read_text())[:24]
        dataset = module.LazySupervisedDataset(records, tokenizer=tokenizer)  # type: ignore[attr-defined]
        from transformers import default_data_collator

        return {"train_dataset": dataset, "data_collator": default_data_collator}

    module.make_supervised_data_module = make  # type: ignore[attr-defined]


def with_maker_of_own_rows(module: ModuleType) -> None:
    def make(tokenizer: Any, data_args: Any) -> dict[str, Any]:
        records = json.loads(Path(data_args.data_path).read_text())
        return {"train_dataset": Halves(records, tokenizer), "eval_dataset": Halves(records[:4], tokenizer)}

    module.make_supervised_data_module = make  # type: ignore[attr-defined]


def with_arguments(module: ModuleType) -> None:
    """A field of data and one of training more, read by a maker and by a Trainer of the script."""
    data, training, base = module.DataArguments, module.TrainingArguments, module.Trainer  # type: ignore[attr-defined]

    @dataclass
    class DataArguments(data):  # type: ignore[misc, valid-type]
        first: int = field(default=0)

    @dataclass(repr=False)
    class TrainingArguments(training):  # type: ignore[misc, valid-type]
        greeting: str = field(default="none")

    class Trainer(base):  # type: ignore[misc, valid-type]
        def log(self, logs: dict[str, float], *rest: Any) -> None:
            assert self.args.greeting == "hello"
            super().log(logs, *rest)

    original = module.make_supervised_data_module  # type: ignore[attr-defined]

    def make(tokenizer: Any, data_args: Any) -> Any:
        made = original(tokenizer=tokenizer, data_args=data_args)
        made["train_dataset"] = torch.utils.data.Subset(made["train_dataset"], range(data_args.first))
        return made

    module.DataArguments, module.TrainingArguments = DataArguments, TrainingArguments  # type: ignore[attr-defined]
    module.Trainer, module.make_supervised_data_module = Trainer, make  # type: ignore[attr-defined]


LAZY, EAGER = {"lazy_preprocess": True}, {"lazy_preprocess": False}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "preprocess-lazy": (with_preprocess, LAZY),
    "preprocess-eager": (with_preprocess, EAGER),
    "wrapped-preprocess": (with_wrapped_preprocess, LAZY),
    "datasets": (with_datasets, LAZY),
    "maker": (with_maker, EAGER),
    "maker-of-own-rows": (with_maker_of_own_rows, {"eval_strategy": "epoch"}),
    "arguments": (with_arguments, {"first": 24, "greeting": "hello", **EAGER}),
}


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return losses_of("fastsft.train", lambda _: None, tmp_path_factory.mktemp("untouched"))


@pytest.mark.variants("preprocess-lazy", "wrapped-preprocess", "datasets", "arguments", "maker-of-own-rows")
@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_fastchats_module(case: str, tmp_path: Path, untouched: list[float]) -> None:
    change, flags = CASES[case]
    theirs, ours = both(change, tmp_path, **flags)
    assert len(ours) == 3 and ours == pytest.approx(theirs, rel=1e-5)
    assert ours != pytest.approx(untouched, rel=1e-5)
    report = json.loads((tmp_path / "fastsft" / "data_report.json").read_text())
    assert set(report) == ({"train", "eval"} if case == "maker-of-own-rows" else {"train"})


def with_fastchats_classes(module: ModuleType) -> None:
    """The argument classes of FastChat itself, and a function for its lines."""
    import fastchat.train.train as original

    for name in ("ModelArguments", "DataArguments", "TrainingArguments"):
        setattr(module, name, getattr(original, name))
    module.rank0_print = lambda *words: print("mine:", *words)  # type: ignore[attr-defined]
    module.trainer_save_model_safe = lambda trainer: print(  # type: ignore[attr-defined]
        "mine saves", trainer.state.global_step, "on", module.local_rank
    )


def test_foreign_argument_classes_and_lines(
    tmp_path: Path, untouched: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert losses_of("fastsft.train", with_fastchats_classes, tmp_path, plot_loss=None) == untouched
    printed = capsys.readouterr().out
    assert "mine: Loading data..." in printed and "mine saves 3 on 0" in printed
    assert not list(tmp_path.glob("*.safetensors"))


def test_names_of_fastsft_data_count_too(tmp_path: Path) -> None:
    from fastsft import data

    def change(module: ModuleType) -> None:
        data.preprocess = own_preprocess  # type: ignore[assignment]

    original = data.preprocess
    try:
        ours = losses_of("fastsft.train", change, tmp_path / "data")
    finally:
        data.preprocess = original
    assert ours == losses_of("fastsft.train", with_preprocess, tmp_path / "train")


def test_a_finished_run_with_a_scripts_data_is_resumed(tmp_path: Path) -> None:
    losses = losses_of("fastsft.train", with_datasets, tmp_path, save_strategy="steps", save_steps=3)
    assert losses_of("fastsft.train", with_datasets, tmp_path, save_strategy="steps", save_steps=3) == losses
    assert not (tmp_path / "fastsft_finished.json").exists()


REFUSED: dict[str, tuple[Any, str]] = {
    "get_conversation_template": (lambda name: None, "--template NAME"),
    "SeparatorStyle": (int, r"train\.preprocess"),
    "IGNORE_TOKEN_ID": (-1, "leaves out labels of -100"),
    "transformers": (json, "read natively"),
    "json": (torch, "files are read natively"),
    "torch": (json, "leave it as it was"),
    "safe_save_model_for_hf_trainer": (print, "trainer_save_model_safe"),
    "_mask_targets": (print, r"train\.preprocess"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_names_without_a_use_are_refused(name: str, tmp_path: Path) -> None:
    value, advice = REFUSED[name]
    with pytest.raises(ValueError, match=rf"fastsft\.train\.{name} was set by the script to .*{advice}"):
        losses_of("fastsft.train", lambda module: setattr(module, name, value), tmp_path)


def test_names_bound_to_what_they_were_are_nothing(tmp_path: Path, untouched: list[float]) -> None:
    import transformers

    def change(module: ModuleType) -> None:
        module.transformers, module.IGNORE_TOKEN_ID = transformers, -100  # type: ignore[attr-defined]

    assert losses_of("fastsft.train", change, tmp_path) == untouched


def test_flags_of_labels_are_refused_where_a_script_makes_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--mask_policy spans has no effect: train\.preprocess was set"):
        losses_of("fastsft.train", with_preprocess, tmp_path, mask_policy="spans")


def test_a_trainer_of_transformers_is_refused(tmp_path: Path) -> None:
    import transformers

    def change(module: ModuleType) -> None:
        module.Trainer = type("Mine", (transformers.Trainer,), {})  # type: ignore[attr-defined]

    with pytest.raises(ValueError, match=r"fastsft\.train\.Trainer was set by the script to Mine, which"):
        losses_of("fastsft.train", change, tmp_path)
