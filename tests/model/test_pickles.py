"""Ten pickles that would run code when read: none does (docs/spec/reliability.md, row S3)."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from canary import Canary
from fastsft import _C, saving
from saving_run import make_trainer
from tiny_models import write_model


def _zip(content: Any, path: Path) -> None:
    torch.save(content, path)


def _legacy(content: Any, path: Path) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


def _plain(content: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(content))


def _tar(content: Any, path: Path) -> None:
    data = pickle.dumps(content)
    with tarfile.open(path, "w") as file:
        entry = tarfile.TarInfo("pickle")
        entry.size = len(data)
        file.addfile(entry, io.BytesIO(data))


WEIGHTS: dict[str, tuple[Callable[[Any, Path], None], Callable[[Canary], Any]]] = {
    "a tensor's place": (_zip, lambda canary: {"lm_head.weight": canary}),
    "legacy format": (_legacy, lambda canary: {"lm_head.weight": canary}),
    "plain pickle": (_plain, lambda canary: {"lm_head.weight": canary}),
    "tar": (_tar, lambda canary: {"lm_head.weight": canary}),
    "instead of the dictionary": (_zip, lambda canary: canary),
    "as a name": (_zip, lambda canary: {canary: torch.zeros(1)}),
}
BESIDE = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "untied")


def test_the_canary_sings(tmp_path: Path) -> None:
    """The tests below could fail."""
    _plain({"a": Canary(tmp_path / "trace")}, tmp_path / "x")
    pickle.loads((tmp_path / "x").read_bytes())
    assert (tmp_path / "trace").exists()


@pytest.mark.filterwarnings("ignore:.*as plain data")
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights(tmp_path: Path, model: Path, kind: str, sharded: bool) -> None:
    write, make = WEIGHTS[kind]
    source = tmp_path / "model"
    source.mkdir()
    name = "pytorch_model-00001-of-00001.bin" if sharded else "pytorch_model.bin"
    write(make(Canary(tmp_path / "trace")), source / name)
    if sharded:
        index = {"weight_map": {"lm_head.weight": name}}
        (source / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    engine = _C.Engine((model / "config.json").read_text())
    with pytest.raises(ValueError, match="convert the model to safetensors"):
        saving.load_weights(engine, source)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "weights.pkl"])
def test_files_that_are_no_weights(tmp_path: Path, model: Path, name: str) -> None:
    _zip({"lm_head.weight": Canary(tmp_path / "trace")}, tmp_path / name)
    engine = _C.Engine((model / "config.json").read_text())
    with pytest.raises(ValueError, match=r"expected model\.safetensors"):
        saving.load_weights(engine, tmp_path)
    assert not (tmp_path / "trace").exists()


def test_pickles_beside_safetensors_are_not_opened(tmp_path: Path, model: Path) -> None:
    """In a checkpoint of ours. Those of transformers: tests/saving/test_resume_of_transformers.py."""
    out = tmp_path / "out"
    trainer = make_trainer(model, out)
    saving.save_checkpoint(trainer, out / "checkpoint-0")
    for name in (*BESIDE, "pytorch_model.bin"):
        _plain({"x": Canary(tmp_path / "trace")}, out / "checkpoint-0" / name)
    assert saving.newest_checkpoint(out) == str(out / "checkpoint-0")
    saving.load_checkpoint(trainer, out / "checkpoint-0")
    assert not (tmp_path / "trace").exists()
