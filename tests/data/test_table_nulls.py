"""A table fills its structs up with null: that is no argument of a call and no part of a tool's schema."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import fastsft
from data_formats import write_records
from family_models import TEMPLATES, write_family
from fastsft.sources.json_lines import without_fills

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
