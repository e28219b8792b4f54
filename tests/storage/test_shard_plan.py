"""The split into shards is huggingface_hub's, which transformers uses; file names of an index are checked."""

import json
import random

import pytest
import torch
from huggingface_hub import split_torch_state_dict_into_shards

from fastsft import _C


def library_plan(sizes, limit):
    state = {name: torch.empty(size, dtype=torch.uint8) for name, size in sizes}
    plan = split_torch_state_dict_into_shards(
        state, max_shard_size=limit, filename_pattern="model{suffix}.safetensors"
    )
    return [(name, names) for name, names in plan.filename_to_tensors.items()]


@pytest.mark.parametrize("limit", [1, 9, 10, 11, 25, 60, 100, 10_000])
@pytest.mark.parametrize("seed", range(5))
def test_equals_the_library(seed, limit):
    generator = random.Random(seed)
    sizes = [(f"tensor.{i}", generator.choice([1, 3, 10, 11, 40])) for i in range(30)]
    assert _C.plan_shards(sizes, limit) == library_plan(sizes, limit)


def test_a_giant_comes_before_the_shard_being_filled():
    sizes = [("a", 4), ("giant", 50), ("b", 4)]
    assert _C.plan_shards(sizes, 10) == [
        ("model-00001-of-00002.safetensors", ["giant"]),
        ("model-00002-of-00002.safetensors", ["a", "b"]),
    ]


def test_limit_must_be_positive():
    with pytest.raises(ValueError, match="max_shard_size"):
        _C.plan_shards([("a", 1)], 0)


def write_index(directory, file_name):
    index = {"metadata": {"total_size": 4}, "weight_map": {"a": file_name}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "a/../../b",
        "sub/x",
        "..",
        ".",
        "",
        "C:\\x",
        "C:x",
        "a\\b",
        "a\0b",
        "x" * 256,
        "\u4e2d" * 4096,
        "a\n",
    ],
)
def test_index_names_that_are_no_names(tmp_path, name):
    write_index(tmp_path, name)
    with pytest.raises(ValueError, match="expected the name of a file"):
        _C.weight_files(str(tmp_path))


@pytest.mark.parametrize("value", [None, 1, ["x"], {"x": "y"}])
def test_index_values_that_are_no_text(tmp_path, value):
    write_index(tmp_path, value)
    with pytest.raises(ValueError, match="expected a file name"):
        _C.read_weight_map(str(tmp_path))


def test_link_that_leaves_the_directory(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (tmp_path / "secret").write_bytes(b"x")
    (model / "x.safetensors").symlink_to(tmp_path / "secret")
    write_index(model, "x.safetensors")
    with pytest.raises(ValueError, match="leaves the directory"):
        _C.weight_files(str(model))


def test_link_of_the_hub_cache_is_allowed(tmp_path):
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "abc").write_bytes(b"x")
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    assert _C.weight_files(str(snapshot)) == [str(snapshot / "model.safetensors")]


def test_nothing_to_read(tmp_path):
    with pytest.raises(ValueError, match="found neither"):
        _C.weight_files(str(tmp_path))
