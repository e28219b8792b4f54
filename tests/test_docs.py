"""What the documents promise exists: files behind links, flags of the table, the command of the README."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from fastsft.arguments import DataArguments, ModelArguments, TrainingArguments
from fastsft.parser import DataclassParser

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
CLASSES = (ModelArguments, DataArguments, TrainingArguments)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())
    missing = [link for link in links if not (document.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_exist(document: Path) -> None:
    pattern = r"`((?:csrc|python|tests|scripts|benchmarks|docs)/[\w./-]+)`"
    missing = [name for name in re.findall(pattern, document.read_text()) if not (ROOT / name).exists()]
    assert not missing


def test_flag_table_is_complete_and_invents_nothing() -> None:
    text = (ROOT / "docs" / "migrating_from_fastchat.md").read_text()
    rows = "\n".join(line for line in text.splitlines() if line.startswith("| `--"))
    documented = set(re.findall(r"`--(\w+)`", "\n".join(row.split("|")[1] for row in rows.splitlines())))
    fields = {field.name for each in CLASSES for field in dataclasses.fields(each)}
    assert documented == fields


def test_readme_command_parses(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    command = re.search(r"torchrun --nproc_per_node=2 -m fastsft\.train \\\n(.*?)```", text, re.S)
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", " "))
    model, data, training = DataclassParser(CLASSES).parse_args_into_dataclasses(words)
    assert (model.model_name_or_path, data.data_path) == ("path/to/llama", "conversations.json")
    assert (training.bf16, training.sharding_strategy) == (True, "full_shard")
