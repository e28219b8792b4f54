"""Links in a model directory: inside it and of the hub's cache they work, others are refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fastsft import _C, saving
from fastsft.model.causal_lm import CausalLM
from fastsft.model.generation import ChatModel
from fastsft.model.model_config import model_config
from fastsft.tokenizer import Tokenizer
from fastsft.tokenizer.settings import read_settings
from tiny_models import write_model


def load(folder: Path) -> Any:
    """Configuration, generation settings and weights."""
    model = CausalLM.from_pretrained(str(folder))
    model.generation_settings()
    engine = _C.Engine(json.dumps(model.engine_config()))
    saving.load_weights(engine, str(folder))
    return engine


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def in_parts(folder: Path) -> None:
    """Of pickled weights with an index."""
    pickled(folder)
    (folder / "pytorch_model.bin").rename(folder / "pytorch_model-00001-of-00001.bin")
    names = load(folder.with_name("whole")).named_parameters()
    index = {"weight_map": dict.fromkeys(names, "pytorch_model-00001-of-00001.bin")}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_model(tmp_path / "whole", "untied")
    return Path(shutil.copytree(tmp_path / "whole", tmp_path / "model"))


FORMS: dict[str, Callable[[Path], None]] = {
    "config.json": lambda folder: None,
    "generation_config.json": lambda folder: None,
    "model.safetensors": lambda folder: None,
    "model.safetensors.index.json": lambda folder: write_in_two(folder),
    "pytorch_model.bin": pickled,
    "pytorch_model.bin.index.json": in_parts,
    "pytorch_model-00001-of-00001.bin": in_parts,
}


def write_in_two(folder: Path) -> None:
    shutil.rmtree(folder)
    write_model(folder, "untied", max_shard_size="50KB")


@pytest.mark.filterwarnings("ignore:.*no safetensors")
@pytest.mark.parametrize("target", ["elsewhere", "parent", "nowhere", "loop"])
@pytest.mark.parametrize("name", FORMS)
def test_a_link_that_leaves_or_leads_nowhere(model: Path, tmp_path: Path, name: str, target: str) -> None:
    FORMS[name](model)
    path = model / name
    outside = tmp_path / "outside.json"
    path.rename(outside)
    places = {"elsewhere": str(outside), "parent": "../outside.json", "nowhere": "gone", "loop": name}
    path.symlink_to(places[target])
    with pytest.raises((ValueError, RuntimeError), match=name) as caught:
        load(model)
    said = str(caught.value)
    if target in ("elsewhere", "parent"):
        assert f'"{name}" is a link that leaves the directory, to {outside}' in said
    assert "\n" not in said and "found no" not in said and "found neither" not in said


@pytest.mark.filterwarnings("ignore:.*no safetensors")
@pytest.mark.parametrize("name", FORMS)
def test_links_inside_and_of_the_hub_cache_are_followed(model: Path, tmp_path: Path, name: str) -> None:
    FORMS[name](model)
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(model.iterdir())):
        shutil.copyfile(path, blobs / f"{number:040x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:040x}")
    (tmp_path / "by_name").symlink_to(snapshot)  # a directory may be given by a link to it
    (model / name).rename(model / "kept")
    (model / name).symlink_to("kept")
    expected = load(tmp_path / "whole").named_parameters()
    for folder in (snapshot, tmp_path / "by_name", model):
        found = load(folder).named_parameters()
        assert all(torch.equal(found[key], value) for key, value in expected.items())


@pytest.mark.parametrize(
    "name", ["config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer_config.json"]
)
def test_what_else_reads_these_files(model: Path, tmp_path: Path, name: str) -> None:
    """The tokenizer's settings look into config.json; `plan` and the answers of a trained model too."""
    (tmp_path / "secret").write_text('{"model_type": "llama"}')
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to("../secret")
    with pytest.raises(ValueError, match=f'"{name}" is a link that leaves the directory'):
        read_settings(model)
    if name == "config.json":
        with pytest.raises(ValueError, match="link that leaves"):
            model_config(str(model))
        shutil.copy(Path(__file__).parents[1] / "golden/tokenizers/llama2_legacy/tokenizer.model", model)
        with pytest.raises(ValueError, match="link that leaves"):
            ChatModel(model)


def test_a_dangling_link_of_a_tokenizer_is_named(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "golden" / "tokenizers" / "llama2_legacy"
    model = Path(shutil.copytree(source, tmp_path / "model"))
    (model / "chat_template.jinja").unlink(missing_ok=True)
    (model / "chat_template.jinja").symlink_to("gone")
    with pytest.raises(ValueError, match=r"chat_template\.jinja: a link that leads nowhere, to gone; copy"):
        Tokenizer.from_pretrained(model, model_max_length=64)
