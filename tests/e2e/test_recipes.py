"""Each recipe on a small model of its family: trained, resumed with the same bits, chatted with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import vision_text_models
from family_models import TEMPLATES, _byte_level, write_family
from fastsft.cli import main as cli
from fastsft.cli.recipes import names, write_recipe
from fastsft.train import train
from golden_text import conversation_file

# The beginning of a recipe's name -> the family of its stand-in
FAMILY = {
    "qwen2.5": "qwen2", "qwen3": "qwen3", "llama-3": "llama3", "mistral": "mistral", "vicuna": "llama2",
    "gemma-3": "gemma3",
}  # fmt: skip
# One recipe a family and each method twice; the others are thorough.
USUAL = (
    "qwen2.5-0.5b-lora", "llama-3.2-1b-full", "gemma-3-4b-lora", "mistral-7b-v0.3-qlora", "vicuna-7b-full",
    "qwen3-8b-qlora",
)  # fmt: skip


def stand_in(folder: Path, recipe: str) -> Path:
    """A small random model of the recipe's family, with its tokenizer and chat template."""
    family = next(family for start, family in FAMILY.items() if recipe.startswith(start))
    if family != "gemma3":
        return write_family(folder, family)
    specials = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")
    folder.mkdir()
    named = {"bos_token": "<bos>", "eos_token": "<end_of_turn>", "pad_token": "<pad>"}
    rows = _byte_level(folder, specials, named)
    shutil.copyfile(TEMPLATES / "gemma.jinja", folder / "chat_template.jinja")
    model = vision_text_models.vision_text_model("gemma3", vocab_size=rows, max_position_embeddings=512)
    model.to(torch.float32).save_pretrained(folder)
    return folder


def weights(folder: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    assert found
    return found


@pytest.mark.variants(*(f"[{name}]" for name in USUAL))
@pytest.mark.parametrize("recipe", names())
def test_recipe(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_recipe(recipe)
    model = stand_in(tmp_path / "model", recipe)
    flags: dict[str, Any] = {
        "config": str(config), "model_name_or_path": str(model), "use_cpu": True,
        "data_path": str(conversation_file("dummy_conversation")), "max_dropped": 1.0,
        "model_max_length": 96, "max_steps": 2, "save_steps": 1, "gradient_accumulation_steps": 1,
        "report_to": "none", "data_cache": "none",
    }  # fmt: skip
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train({**flags, "output_dir": str(whole)})
    policy = json.loads((whole / "data_report.json").read_text())["train"]["mask_policy"]
    assert policy == ("fastchat" if "# template: vicuna_v1.1" in config.read_text() else "spans")
    resumed.mkdir()
    shutil.copytree(whole / "checkpoint-1", resumed / "checkpoint-1")
    result = train({**flags, "output_dir": str(resumed)})
    assert result.global_step == 2 and weights(resumed) == weights(whole)
    folder = resumed if recipe.endswith("-full") else resumed / "merged"
    capsys.readouterr()
    assert cli.main(["chat", str(folder), "--message", "Hello", "--max_new_tokens", "4"]) == 0
    assert "Traceback" not in "".join(capsys.readouterr())


def test_every_family_and_method_has_recipes() -> None:
    found = {family: [name for name in names() if name.startswith(family)] for family in FAMILY}
    methods = {family: {name.rpartition("-")[2] for name in of} for family, of in found.items()}
    native = {"full", "lora", "qlora"}
    assert methods == {**dict.fromkeys(FAMILY, native), "gemma-3": {"full", "lora"}}
    assert set(USUAL) <= set(names())
