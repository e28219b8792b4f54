"""Evaluation rows that are trained, too: a line says how many."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastsft.arguments.data import DataArguments
from fastsft.data.data_module import make_supervised_data_module
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, MODES, human_gpt

TOKENIZER = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / MODES[0], model_max_length=128)
RECORDS = [{"id": str(i), "conversations": human_gpt(f"question {i}", f"answer {i}")} for i in range(20)]


def write(path: Path, records: list[Any]) -> Path:
    path.write_text(json.dumps(records))
    return path


def lines(trained: object, evaluated: object, capsys: pytest.CaptureFixture[str], **more: Any) -> list[str]:
    args = SimpleNamespace(
        data_path=str(trained),
        eval_data_path=str(evaluated),
        lazy_preprocess=False,
        data_cache="none",
        **more,
    )
    make_supervised_data_module(TOKENIZER, args)
    return [line for line in capsys.readouterr().out.splitlines() if "in the training data, too" in line]


@pytest.mark.parametrize("lazy", [False, True])
def test_counts(lazy: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = write(tmp_path / "whole.json", RECORDS)
    copy = write(tmp_path / "copy.json", RECORDS[::-1])
    part = write(tmp_path / "part.json", [{**each, "id": "x"} for each in RECORDS[5:8]])
    others = [{"conversations": human_gpt("else", each["id"])} for each in RECORDS]
    mixed = write(tmp_path / "mixed.json", [RECORDS[3], *others])
    other = write(tmp_path / "other.json", [{"conversations": human_gpt("else", "where")}])
    for evaluated, count in ((whole, "all its rows"), (copy, "all its rows"), (part, "all its rows"),
                             (f"{whole}:0.1", "all its rows"), (mixed, "1 of its 21 rows")):  # fmt: skip
        (line,) = lines(whole, evaluated, capsys, mask_policy="fastchat")
        assert line.startswith(f"{evaluated}: {count} are in the training data")
    assert not lines(whole, other, capsys)
    assert not lines(part, f"{other},{write(tmp_path / 'rest.json', RECORDS[8:])}", capsys)
    (line,) = lines(f"{whole}:0.5,{other}", f"{other}:3", capsys)  # one row of training, three of evaluation
    assert "all its rows" in line


def test_a_share_of_dropped_records() -> None:
    for value in (5.0, -0.1, 1.01, float("nan"), 100.0):
        with pytest.raises(ValueError, match="--max_dropped: expected a share"):
            DataArguments(data_path="x", max_dropped=value).check_flags()
    with pytest.raises(ValueError, match=r"5 % is 0\.05"):
        DataArguments(data_path="x", max_dropped=5).check_flags()
    for value in (0, 0.05, 1):
        DataArguments(data_path="x", max_dropped=value).check_flags()
