"""Records that a script's own data set class is given: those that FastChat's train.py hands it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastchat.train.train as fastchat
import pytest

import fastsft.train
from golden_text import hf_tokenizer

FILES: dict[str, str] = {
    "alpaca": json.dumps([{"instruction": "Name it", "input": "", "output": "Fox"}]),
    "messages": json.dumps([{"messages": [{"role": "user", "content": "a"}], "weight": 0.5, "source": "x"}]),
    "sharegpt": json.dumps([{"id": "1", "conversations": [{"from": "human", "value": "a"}]}], indent=2),
    "object": json.dumps({"version": 1, "data": [{"prompt": "a", "chosen": "b"}]}, indent=1),
    "unknown": json.dumps([{"question_id": 7}, 3, None]),
}


def data_args(path: Path | str, **options: Any) -> Any:
    names: dict[str, Any] = {"data_path": str(path), "eval_data_path": None, "lazy_preprocess": False}
    return SimpleNamespace(**names, **options)


@pytest.fixture(params=["SupervisedDataset", "LazySupervisedDataset"])
def seen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`seen(module, path)`: what a class of the script gets from that module's file of data."""
    monkeypatch.setattr(fastchat, "local_rank", 0)
    tokenizer = hf_tokenizer("llama2_legacy", 64)

    def given(module: Any, path: Path | str, **options: Any) -> Any:
        taken: list[Any] = []

        class Own(fastsft.train.Dataset):  # type: ignore[misc]
            def __init__(self, raw_data: Any, tokenizer: Any) -> None:
                taken.append(raw_data)

        monkeypatch.setattr(module, request.param, Own)
        arguments = data_args(path, **options)
        arguments.lazy_preprocess = request.param.startswith("Lazy")
        module.make_supervised_data_module(tokenizer=tokenizer, data_args=arguments)
        return taken[0]

    return given


@pytest.mark.parametrize("content", FILES)
def test_records_are_fastchats(content: str, seen: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(FILES[content])
    found, expected = seen(fastsft.train, path), seen(fastchat, path)
    assert found == expected == json.loads(FILES[content])
    assert type(found) is type(expected)


def test_a_format_that_is_named_makes_conversations(seen: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(FILES["alpaca"])
    (record,) = seen(fastsft.train, path, data_format="alpaca")
    assert list(record) == ["conversations"]


def test_lines_and_several_files_are_lists_of_their_records(seen: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"instruction": "a", "output": "b"}\n{"instruction": "c"}\n')
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(b'[{"x": 1}]'))
    lines = [{"instruction": "a", "output": "b"}, {"instruction": "c"}]
    assert seen(fastsft.train, tmp_path / "a.jsonl") == lines
    (tmp_path / "one.jsonl").write_text('{"instruction": "c"}\n')
    assert seen(fastsft.train, tmp_path / "one.jsonl") == lines[1:]
    both = f"{tmp_path / 'a.jsonl'},{tmp_path / 'b.json.gz'}:2"
    assert seen(fastsft.train, both) == [*lines, {"x": 1}, {"x": 1}]


@pytest.mark.parametrize("name", ["SupervisedDataset", "LazySupervisedDataset"])
def test_a_class_derived_from_ours_is_given_conversations(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hands them on to our constructor, of any data format."""
    path, taken = tmp_path / "data.json", []
    path.write_text(FILES["alpaca"])
    ours: Any = getattr(fastsft.train, name)

    class Derived(ours):
        def __init__(self, raw_data: Any, tokenizer: Any) -> None:
            taken.extend(raw_data)
            super().__init__(raw_data, tokenizer)

    monkeypatch.setattr(fastsft.train, name, Derived)
    arguments = data_args(path)
    arguments.lazy_preprocess = name.startswith("Lazy")
    tokenizer = hf_tokenizer("llama2_legacy", 64)
    made = fastsft.train.make_supervised_data_module(tokenizer, arguments)["train_dataset"]
    assert type(made) is Derived and len(made) == 1 and (made[0]["labels"] != -100).any()
    assert [turn["value"] for turn in taken[0]["conversations"]][-1] == "Fox"


def test_preprocess_of_a_script_is_given_conversations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, taken = tmp_path / "data.json", []
    path.write_text(FILES["alpaca"])

    def own(sources: Any, tokenizer: Any) -> Any:
        taken.extend(sources)
        raise InterruptedError

    monkeypatch.setattr(fastsft.train, "preprocess", own)
    with pytest.raises(InterruptedError):
        fastsft.train.make_supervised_data_module(hf_tokenizer("llama2_legacy", 64), data_args(path))
    assert [turn["value"] for turn in taken[0]][-1] == "Fox"
