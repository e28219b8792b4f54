"""What the documents promise exists: files behind links, flags of the table, the command of the README."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.cli.args import main

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
CLASSES = (ModelArguments, DataArguments, TrainingArguments, LoraArguments)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```", "", document.read_text(), flags=re.M | re.S)
    links = re.findall(r"\]\((?!https?:)([^)#]+)", prose)
    missing = [link for link in links if not (document.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_files_exist(document: Path) -> None:
    pattern = r"`((?:csrc|python|tests|scripts|benchmarks|docs)/[\w./-]+)`"
    missing = [name for name in re.findall(pattern, document.read_text()) if not (ROOT / name).exists()]
    assert not missing


def test_page_of_arguments_is_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--page"]) == 0
    written = capsys.readouterr().out
    page = (ROOT / "docs" / "arguments.md").read_text()
    assert written == page, "stale: python -m fastsft.cli.main args --page > docs/arguments.md"
    documented = re.findall(r"^\| `--(\w+)`", page, re.M)
    flags = [field.name for each in CLASSES for field in dataclasses.fields(each) if field.init]
    assert sorted(documented) == sorted(flags)


def test_migration_page_names_only_flags_that_exist() -> None:
    text = (ROOT / "docs" / "migrating_from_fastchat.md").read_text()
    named = set(re.findall(r"`--(\w+)", text)) - {"name", "no_", "config"}
    flags = {field.name for each in CLASSES for field in dataclasses.fields(each)}
    assert len(named) > 10 and named <= flags


def test_readme_command_parses(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    command = re.search(r"torchrun --nproc_per_node=2 -m fastsft\.train \\\n(.*?)```", text, re.S)
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", " "))
    model, data, training, _ = DataclassParser(CLASSES).parse_args_into_dataclasses(words)
    assert (model.model_name_or_path, data.data_path) == ("path/to/llama", "conversations.json")
    assert (training.bf16, training.sharding_strategy) == (True, "full_shard")
