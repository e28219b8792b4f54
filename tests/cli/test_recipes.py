"""`fastsft recipes`: what it lists and writes, and the figures that recipes and the page of memory have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

import make_recipes
from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.cli import main as cli
from fastsft.cli import plan
from fastsft.cli.recipes import FOLDER, names

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "benchmarks" / "configs"
CARD = re.compile(r"#   (.+?) +([\d.]+) of ([\d.]+)(, with fp16)?")
OF_PLAN = ("lora", "lora_r", "lora_dropout", "lora_target_modules", "q_lora", "grad_dtype", "optim")
FEW = ("llama-3.2-1b-lora", "vicuna-7b-qlora", "qwen2.5-7b-full")


def flags_of(recipe: str) -> list[str]:
    """The flags of a recipe that memory depends on, as `fastsft plan` takes them."""
    values = yaml.safe_load((FOLDER / f"{recipe}.yaml").read_text())
    taken = {name: values[name] for name in OF_PLAN if name in values}
    words = {
        name: " ".join(value) if isinstance(value, list) else str(value) for name, value in taken.items()
    }
    length = ["--model_max_length", str(values["model_max_length"])]
    return [*length, *(word for name, value in words.items() for word in (f"--{name}", value))]


def planned(recipe: str, card: str, dtype: str, capsys: pytest.CaptureFixture[str]) -> float:
    config = CONFIGS / f"{recipe.rpartition('-')[0]}.json"
    words = ["--model", str(config), "--gpu", card, dtype, *flags_of(recipe), "--json"]
    assert plan.main(words) == 0
    return float(json.loads(capsys.readouterr().out)["total"]) / 2**30


@pytest.mark.variants(*(f"[{name}]" for name in FEW))
@pytest.mark.parametrize("recipe", [name for name in names() if not name.startswith("gemma")])
def test_memory_is_that_of_plan(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command itself, with the flags that stand in the file."""
    cards = CARD.findall((FOLDER / f"{recipe}.yaml").read_text())
    assert cards
    for card, total, room, half in cards:
        figure = planned(recipe, card, "--fp16" if half else "--bf16", capsys)
        assert f"{figure:.1f}" == total and figure <= float(room)


@pytest.mark.thorough
def test_every_file_is_what_the_script_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_recipes.main(["--check"]) == 0, capsys.readouterr().out


def test_the_page_has_the_figures_of_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """Two rows of the table; the thorough test compares all."""
    page = (ROOT / "docs" / "memory.md").read_text()
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line[:2] == "| "
    ]
    head = next(row for row in rows if row[:2] == ["model", "trained"])
    table = {(row[0], row[1]): dict(zip(head, row, strict=True)) for row in rows if len(row) == len(head)}
    assert len(table) == 1 + sum(1 for _ in make_recipes.combinations()) and len(head) == 2 + 12
    for card in ("T4", "L4", "RTX 5090", "B200"):
        dtype = "--fp16" if card == "T4" else "--bf16"
        figure = planned("qwen2.5-0.5b-full", card, dtype, capsys)
        assert table["Qwen2.5-0.5B-Instruct", "all weights"][card] == f"{figure:.0f}"
    small = table["Llama-3.2-1B-Instruct", "all weights"]
    assert small["L4"] == "-" and plan.main(
        ["--model", str(CONFIGS / "llama-3.2-1b.json"), "--gpu", "L4", "--bf16"]
    )


def test_recipes_are_flags_of_training() -> None:
    classes = (ModelArguments, DataArguments, TrainingArguments, LoraArguments)
    for name in names():
        parser = DataclassParser(classes, prog="train")
        model, _, training, lora = parser.parse_args_into_dataclasses(
            ["--config", str(FOLDER / f"{name}.yaml")]
        )
        assert training.bf16 and 1e-5 <= training.learning_rate <= 2e-4 and "/" in model.model_name_or_path
        assert (lora.lora, lora.q_lora) == (not name.endswith("-full"), name.endswith("-qlora"))
        assert lora.lora_target_modules == (["all-linear"] if lora.lora else ["q_proj", "v_proj"])


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines[: len(names())]}
    assert rows.keys() == set(names()) and lines[-1].startswith("fastsft recipes NAME [FILE] writes one")
    assert re.search(
        r"Llama-3.2-1B-Instruct +LoRA +T4 \(fp16\), RTX 4090, A100-40GB", rows["llama-3.2-1b-lora"]
    )
    assert re.search(r"Qwen2.5-7B-Instruct +all weights +A100, H100$", rows["qwen2.5-7b-full"])


def test_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As NAME.yaml or FILE, which the command in its head names; no file is replaced."""
    monkeypatch.chdir(tmp_path)
    expected = (FOLDER / "qwen3-8b-lora.yaml").read_text()
    assert cli.main(["recipes", "qwen3-8b-lora"]) == 0
    assert Path("qwen3-8b-lora.yaml").read_text() == expected
    assert "fastsft train --config qwen3-8b-lora.yaml" in capsys.readouterr().out
    Path("mine.yml").write_text("a: 1\n")
    for words, message in (
        (["qwen3-8b-lora"], "qwen3-8b-lora.yaml exists and stays as it is"),
        (["qwen3-8b-lora", "mine.yml"], "mine.yml exists"),
        (["qwen3-8b-lora", "mine.json"], "expected a .yaml or .yml file"),
        (["qwen3-8b-lora", "no/such/folder.yaml"], "expected a file in a folder that is there, got no/such"),
        (["qwen-7b"], "the nearest is qwen2.5-7b"),
        (["../memory"], 'no recipe "../memory"'),
    ):
        assert cli.main(["recipes", *words]) == 1
        assert message in capsys.readouterr().err
    assert Path("mine.yml").read_text() == "a: 1\n"
    assert cli.main(["recipes", "Qwen3-8B-lora.yaml", "own.yaml"]) == 0
    assert Path("own.yaml").read_text() == expected.replace(
        "--config qwen3-8b-lora.yaml", "--config own.yaml"
    )


def test_examples_are_the_recipes() -> None:
    shown = ROOT / "examples" / "recipes"
    assert {path.name: path.read_text() for path in shown.glob("*.yaml")} == {
        path.name: path.read_text() for path in FOLDER.glob("*.yaml")
    }
