"""Names in an index that lead elsewhere are refused unopened (docs/spec/reliability.md, row S2)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fastsft import _C, saving
from opened_files import opened_files
from tiny_models import write_model

INDEX = "model.safetensors.index.json"
NAMES = {
    "parent": "../secret.safetensors",
    "absolute": "{tmp}/secret.safetensors",
    "through a directory": "sub/../../secret.safetensors",
    "in a directory": "sub/inner.safetensors",
    "slash at the end": "secret.safetensors/",
    "dots": "..",
    "this directory": ".",
    "empty": "",
    "drive": "C:\\secret.safetensors",
    "drive, no slash": "C:secret.safetensors",
    "backslash": "..\\secret.safetensors",
    "NUL": "good.safetensors\0.bin",
    "4 KB": "x" * 4096,
    "newline": "good.safetensors\n",
    "link": "link.safetensors",
    "link through a directory": "sublink/secret.safetensors",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory with good.safetensors, a secret beside it, and ways to reach the secret."""
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    for path in (tmp_path / "secret.safetensors", folder / "sub" / "inner.safetensors",
                 folder / "good.safetensors"):  # fmt: skip
        save_file({"a": torch.ones(1)}, path)
    (folder / "link.safetensors").symlink_to(tmp_path / "secret.safetensors")
    (folder / "sublink").symlink_to(tmp_path)
    return folder


def write_index(folder: Path, name: str) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {"a": name}}))


@pytest.mark.parametrize("kind", NAMES)
def test_refused_before_it_is_opened(tmp_path: Path, model: Path, kind: str) -> None:
    write_index(model, NAMES[kind].format(tmp=tmp_path))
    with (
        opened_files(tmp_path, model, model / "sub") as opened,
        pytest.raises(ValueError, match=r"expected the name of a file|leaves the directory"),
    ):
        _C.weight_files(str(model))
    assert set(opened) == {INDEX}


def test_a_good_name_is_seen_to_be_opened(tmp_path: Path, model: Path) -> None:
    """The test above could fail."""
    write_index(model, "good.safetensors")
    with opened_files(tmp_path, model) as opened:
        _C.SafetensorsReader(_C.weight_files(str(model))[0])
    assert set(opened) == {INDEX, "good.safetensors"}
    with opened_files(tmp_path, model) as opened:
        _C.SafetensorsReader(str(model / "link.safetensors"))
    assert "secret.safetensors" in opened


@pytest.mark.parametrize("kind", [kind for kind in NAMES if "link" not in kind])
def test_an_index_of_pickles(tmp_path: Path, model: Path, kind: str) -> None:
    """The other index, which Python reads."""
    name = NAMES[kind].format(tmp=tmp_path)
    source = write_model(tmp_path / "tiny", "tied")
    (model / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    engine = _C.Engine((source / "config.json").read_text())
    with (
        opened_files(tmp_path, model, model / "sub") as opened,
        pytest.raises(ValueError, match=r"expected the name of a file"),
    ):
        saving.load_weights(engine, model)
    assert set(opened) <= {"pytorch_model.bin.index.json", INDEX}


def test_a_shard_of_another_model(tmp_path: Path) -> None:
    source = write_model(tmp_path / "tiny", "tied", max_shard_size="20KB")
    other = write_model(tmp_path / "other", "qwen3", max_shard_size="20KB")
    shards = sorted(path.name for path in source.glob("*.safetensors"))
    assert len(shards) > 2
    (source / shards[1]).write_bytes(sorted(other.glob("*.safetensors"))[1].read_bytes())
    engine = _C.Engine((source / "config.json").read_text())
    with pytest.raises(ValueError, match=r"missing|expected shape|unknown"):
        saving.load_weights(engine, source)


def test_the_manifest_of_a_checkpoint(tmp_path: Path, model: Path) -> None:
    files = [_C.FileDigest("../secret.safetensors", 1, 0)]
    staging = _C.AtomicDirectory(str(tmp_path), "1")
    staging.commit("checkpoint-1", _C.Manifest(1, 1, "", files))
    with opened_files(tmp_path, tmp_path / "checkpoint-1") as opened:
        problems = _C.verify_directory(str(tmp_path / "checkpoint-1"))
    assert "expected the name of a file" in problems[0]
    assert set(opened) == {"manifest.json"}
