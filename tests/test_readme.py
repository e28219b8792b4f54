"""Programs take the README's commands (the torchrun command: test_docs.py); its figures are measured."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.cli import inspect, plan
from fastsft.cli.recipes import FOLDER

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8").replace("\\\n", " ")
MEMORY = (ROOT / "docs" / "memory.md").read_text("utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
MOST_WORDS = 1300


def words_of(program: str) -> list[str]:
    """Of the one command of the README that begins with `program`."""
    (words,) = re.findall(rf"^{re.escape(program)} (.*)$", README, re.M)
    return shlex.split(words, comments=True)


def test_the_example_is_inspected_and_trained_with_the_same_labels() -> None:
    recipe, file = words_of("fastsft recipes")
    words = [str(FOLDER / f"{recipe}.yaml") if word == file else word for word in words_of("fastsft train")]
    classes = (ModelArguments, DataArguments, TrainingArguments, LoraArguments)
    model, data, training, lora = DataclassParser(classes, prog="train").parse_args_into_dataclasses(words)
    seen = inspect.parse(words_of("fastsft inspect"))
    assert (model.model_name_or_path, data.data_path) == (str(seen.model), str(seen.data))
    assert data.mask_policy == "auto" and seen.mask_policy is None  # auto, too
    assert training.model_max_length == seen.model_max_length == 2048
    assert training.bf16 and lora.lora and lora.save_merged
    assert words_of("fastsft chat") == [f"{training.output_dir}/merged"]


def test_it_is_short() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_its_figures_are_those_of_the_page_of_benchmarks() -> None:
    (table,) = re.findall(r"^\| what \| against \| speedup \|$(.*?)\n\n", README, re.M | re.S)
    figures = re.findall(r"\b[\d.]+x", table)
    assert len(figures) >= 8
    assert [figure for figure in figures if not re.search(rf"\b{re.escape(figure)}", BENCHMARKS)] == []


def test_the_table_of_machines_is_what_the_planner_says(capsys: pytest.CaptureFixture[str]) -> None:
    rows = re.findall(r"\| `(--model \S+\.json --memory .*?)` \| ([\d.]+) \|", MEMORY)
    assert len(rows) >= 3
    for words, size in rows:
        _, model, *rest = words.split()
        assert plan.main(["--model", str(ROOT / "benchmarks" / "configs" / model), "--bf16", *rest]) == 0
        (line,) = (each for each in capsys.readouterr().out.splitlines() if "a rank at most" in each)
        assert f" {size} GiB of" in line, (words, line)
