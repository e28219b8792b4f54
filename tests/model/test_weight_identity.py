"""The identity of a model directory's weights: which changes it sees, and how little it reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from fastsft.model import weight_identity
from fastsft.model.weight_identity import has_other_types, is_comparable, sampled_digest, types_of
from tiny_models import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model", "untied")


def test_the_same_weights_in_other_files_are_the_same(model: Path, tmp_path: Path) -> None:
    """Under another name, in more files, and as pickled weights."""
    wanted = sampled_digest(model)
    assert wanted is not None
    shutil.copytree(model, tmp_path / "copy")
    AutoModelForCausalLM.from_pretrained(model).save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    (tmp_path / "pickled").mkdir()
    tensors = load_file(model / "model.safetensors")
    torch.save(tensors, tmp_path / "pickled" / "pytorch_model.bin")
    for name in ("copy", "parts", "pickled"):
        assert sampled_digest(tmp_path / name) == wanted, name
    save_file({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, tmp_path / "x")
    (tmp_path / "x").rename(tmp_path / "copy" / "model.safetensors")
    assert sampled_digest(tmp_path / "copy") == wanted


def test_a_change_of_any_tensor_shows(model: Path, tmp_path: Path) -> None:
    """All of its values, its type, its shape, its name."""
    tensors, seen = load_file(model / "model.safetensors"), {sampled_digest(model)}
    file = tmp_path / "model.safetensors"
    name = next(iter(tensors))
    rest = {other: value for other, value in tensors.items() if other != name}
    changed = [{**tensors, name: value + 0.1} for name, value in tensors.items()]
    changed += [
        {**tensors, name: tensors[name].bfloat16()},
        {**tensors, name: tensors[name].reshape(-1)},
        {**rest, "renamed": tensors[name]},
    ]
    for number, content in enumerate(changed, 1):
        save_file(content, file)
        seen.add(sampled_digest(tmp_path))
        assert len(seen) == number + 1
    assert None not in seen


def test_of_a_large_tensor_four_blocks_are_read(tmp_path: Path) -> None:
    places = weight_identity._sample_ranges(10_000_000)
    assert [count for _, count in places] == [4096] * 4
    assert places[0][0] == 0 and sum(places[-1]) == 10_000_000
    values = torch.zeros(2_500_000)
    save_file({"large": values}, tmp_path / "model.safetensors")
    first = sampled_digest(tmp_path)
    values[-1] = 1
    save_file({"large": values}, tmp_path / "model.safetensors")
    assert sampled_digest(tmp_path) != first


def test_copies_of_tied_weights_do_not_count(model: Path, tmp_path: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    head = tensors.pop("lm_head.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    without = sampled_digest(tmp_path)
    save_file({**tensors, "lm_head.weight": head}, tmp_path / "model.safetensors")
    assert sampled_digest(tmp_path, ["lm_head.weight"]) == without != sampled_digest(tmp_path)


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    assert sampled_digest(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 40)
    assert sampled_digest(tmp_path) is None
    index = {"weight_map": {"a": "gone.safetensors"}}
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert sampled_digest(tmp_path) is None


def test_weights_of_another_type_do_not_tell(model: Path, tmp_path: Path) -> None:
    """Nor does the digest of an old checkpoint, or of values in memory."""
    first = sampled_digest(model)
    tensors = load_file(model / "model.safetensors")
    save_file({name: each.bfloat16() for name, each in tensors.items()}, tmp_path / "model.safetensors")
    narrow = sampled_digest(tmp_path)
    assert first is not None and narrow is not None and types_of(narrow) == "bfloat16"
    assert has_other_types(first, narrow) and not is_comparable(first, narrow)
    assert not has_other_types(first, first) and is_comparable(first, first)
    for other in ("ab" * 32, first.replace("files", "values")):
        assert not is_comparable(other, first) and not has_other_types(other, first)
