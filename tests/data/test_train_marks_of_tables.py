"""Tables: fields such as `train` are followed or stop the run, and nulls that fill structs up are dropped."""

from __future__ import annotations

import csv
import decimal
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastsft
from data_formats import labelled, write_records
from family_models import TEMPLATES, write_family
from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.data.errors import DataError
from fastsft.data.supervised import LazySupervisedDataset, SupervisedDataset, preprocess
from fastsft.sources.json_lines import without_fills
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, MODES, human_gpt

TOKENIZER = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / MODES[0], model_max_length=128)
SPANS = make_labeller(TOKENIZER.native, 128, 0, LabelSettings(mask_policy="spans", template="vicuna_v1.1"))
TURN = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]


def kept(path: Path) -> list[bool]:
    """Whether each record has a row from which something is learned."""
    found = labelled(path, SPANS)
    assert not found.faults, str(found.faults[0])
    out = found.report.entries["not_trained"].first if "not_trained" in found.report.entries else []
    return [f"r{i}" not in out for i in range(found.report.num_records)]


@pytest.mark.variants("parquet")
@pytest.mark.parametrize("kind", ["parquet", "arrow", "saved"])
def test_columns_and_structs_of_tables(kind: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")

    def write(name: str, column: list[Any] | None, of_messages: list[Any] | None = None) -> Path:
        rows: dict[str, Any] = {"id": [f"r{i}" for i in range(3)]}
        marks = of_messages or [None] * 3
        rows["messages"] = [
            [TURN[0], TURN[1] | ({} if of_messages is None else {name: mark})] for mark in marks
        ]
        if column is not None:
            rows[name] = column
        made = datasets.Dataset.from_dict(rows)
        path = tmp_path / f"{name}.{kind}"
        if kind == "saved":
            made.save_to_disk(path)
        elif kind == "parquet":
            made.to_parquet(path)
        else:
            import pyarrow

            with pyarrow.ipc.new_file(path, made.data.table.schema) as file:
                file.write_table(made.data.table)
        return path

    for name in ("train", "Weight", "loss_scale", "is_trainable"):
        assert kept(write(name, [True, False, None])) == [True, False, True]
        assert kept(write(name, [1.0, 0.0, 1.0])) == [True, False, True]
        assert kept(write(name, ["yes", "no", None])) == [True, False, True]
        assert kept(write(name, None, [1, 0, None])) == [True, False, True]
    assert kept(write("masked", [False, True, None])) == [True, False, True]
    for name, values in (
        ("sample_weight", [1.0, 0.5, 1.0]),
        ("mask", [None, "1", None]),
        ("losses", [[0]] * 3),
    ):
        assert labelled(write(name, values), SPANS).faults[0].remark == "bad_mark"
    assert labelled(write("info", [{"train": False}] * 3), SPANS).faults[0].remark == "bad_mark"
    assert kept(write("constraint", [0, 0, 0])) == [True] * 3


def test_cells_of_csv(tmp_path: Path) -> None:
    def write(name: str, *cells: str) -> Path:
        path = tmp_path / f"{name}.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(
                [
                    ["id", "prompt", "completion", name],
                    *([f"r{i}", "Hi", "Ho", c] for i, c in enumerate(cells)),
                ]
            )
        return path

    assert kept(write("train", "true", "False", "", "0", "1", "no", " ")) == [
        True, False, True, False, True, False, True]  # fmt: skip
    assert kept(write("Weight", "1.0", "0.0", "")) == [True, False, True]
    assert labelled(write("weight", "0.5"), SPANS).faults[0].remark == "bad_mark"
    assert labelled(write("train", "maybe"), SPANS).faults[0].remark == "bad_mark"
    assert labelled(write("loss_mask", "1"), SPANS).faults[0].remark == "bad_mark"


class Other:
    """No JSON value."""


def test_preprocess_refuses_what_it_would_learn() -> None:
    """FastChat's function learns every reply, and these are not wanted; others give its labels."""
    plain = preprocess([human_gpt("Hi", "Ho")], TOKENIZER)

    def marked(name: str, value: Any, index: int = 1) -> Any:
        turns = human_gpt("Hi", "Ho")
        turns[index][name] = value
        return preprocess([turns], TOKENIZER)

    for value in (True, 1, 1.0, "yes", None, np.bool_(True), torch.tensor(True), np.int64(1)):
        assert torch.equal(marked("train", value)["labels"], plain["labels"])
    denied = (False, 0, "0", np.bool_(False), np.float32(0), torch.tensor(0), torch.tensor(False), 0.5, [0],
              Other(), decimal.Decimal("0"), torch.tensor([0, 1]))  # fmt: skip
    for value in denied:
        for name in ("train", "WEIGHT", "loss_scale"):
            with pytest.raises(DataError, match=f'record 0, message 1: "{name}" is '):
                marked(name, value)
    for name, value in (("mask", 1), ("masked", True), ("info", {"train": False})):
        with pytest.raises(DataError, match="message 1"):
            marked(name, value)
    with pytest.raises(DataError, match="only replies are learned"):
        marked("train", True, 0)
    for name in ("source", "constraint"):
        assert torch.equal(marked(name, 0)["labels"], plain["labels"])


@pytest.mark.parametrize("kind", [SupervisedDataset, LazySupervisedDataset])
def test_records_of_a_script(kind: Any) -> None:
    """Its data sets hand on conversations alone, so a record that is not wanted is refused before."""

    def made(**more: Any) -> Any:
        records = [{"id": "a", "conversations": human_gpt("Hi", "Ho"), **more}]
        return kind(records, tokenizer=TOKENIZER)[0]["labels"]

    for more in (
        {},
        {"train": True},
        {"weight": 1},
        {"source": 0},
        {"info": {"train": True}},
        {"train": None},
    ):
        assert torch.equal(made(**more), made())
    for name, value in (
        ("train", False),
        ("Loss", "no"),
        ("weight", 0.5),
        ("mask", 1),
        ("info", {"weight": 0}),
    ):
        with pytest.raises(DataError, match='record 0: "' + name):
            made(**{name: value})


def test_names_and_their_parts_agree() -> None:
    """Columns of tables are chosen by parts of their names, which each mark must have."""
    stems = _C.train_mark_stems()
    names = [
        "train",
        "Masked",
        "lossScale",
        "ignore",
        "weights",
        "supervised",
        "omit",
        "skip_loss",
        "backprop",
    ]
    for name in names:
        assert _C.is_train_mark(name) and any(stem in name.lower() for stem in stems), name


datasets = pytest.importorskip("datasets")


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}}


def record(content: str | None, tools: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    called = {"type": "function", "function": {"name": tools["function"]["name"], "arguments": arguments}}
    return {
        "messages": [
            {"role": "user", "content": "Please."},
            {"role": "assistant", "content": content, "tool_calls": [called]},
            {"role": "tool", "content": "r"},
            {"role": "assistant", "content": "done"},
        ],
        "tools": [tools],
    }


WEATHER = tool("weather", city={"type": "string"})
RECORDS = [
    record("", WEATHER, city="Rome"),
    record(None, tool("add", x={"type": "integer"}, y={"type": "integer"}), x=1, y=2),
    record(None, tool("open", path={"type": "string", "enum": ["/a"]}), path="/a"),
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}], "tools": None},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}], "tools": None},
]


def seen(model: Path, data: Any) -> tuple[list[Any], list[str]]:
    """Ids and learned marks of each record; and the text that is learned."""
    found = fastsft.inspect(model, data, mask_policy="spans", n=99, model_max_length=2048)
    rows = [
        (
            row.outcome,
            [mark.name for mark in row.remarks],
            [(each.id, each.is_learned) for each in row.tokens],
        )
        for row in found.records
    ]
    return rows, [row.text.decode() for row in found.records]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "qwen"
    write_family(folder, "qwen2")
    shutil.copyfile(TEMPLATES / "qwen2.5.jinja", folder / "chat_template.jinja")
    return folder


def test_tables_teach_what_the_same_records_teach_as_json(model: Path, tmp_path: Path) -> None:
    expected, texts = seen(model, write_records(tmp_path / "d.jsonl", RECORDS))
    assert '"arguments": {"city": "Rome"}}' in texts[0] and "null" not in "".join(texts)
    table = datasets.Dataset.from_list(RECORDS)
    table.to_parquet(tmp_path / "d.parquet")
    table.save_to_disk(tmp_path / "saved")
    for data in (tmp_path / "d.parquet", tmp_path / "saved", table, table.to_iterable_dataset()):
        assert seen(model, data)[0] == expected


def test_a_null_of_json_is_the_records_own(model: Path, tmp_path: Path) -> None:
    own = [record("", WEATHER, city=None)]
    for data in (own, write_records(tmp_path / "d.json", own)):
        assert '"arguments": {"city": null}' in seen(model, data)[1][0]


def test_only_keys_of_structs_go() -> None:
    table = {
        "id": None,
        "messages": [{"role": "user", "content": None, "name": None}, None],
        "tools": [{"a": [None, {"b": None, "c": {"d": None}}]}],
        "meta": {"x": None, "y": [None]},
    }
    assert without_fills(table) == {
        "id": None,
        "messages": [{"role": "user", "content": None}, None],
        "tools": [{"a": [None, {"c": {}}]}],
        "meta": {"y": [None]},
    }
    assert without_fills(7) == 7
