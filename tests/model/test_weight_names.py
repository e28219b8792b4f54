"""Weights whose names do not fit config.json are told before anything is planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C
from fastsft.model.family import check_dropouts
from fastsft.model.weights import check_weight_names


def weights(folder: Path, name: str, layers: int) -> None:
    names = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(layers)] + ["model.norm.weight"]
    writer = _C.SafetensorsWriter(str(folder / name), [_C.TensorSpec(each, "F32", [1]) for each in names])
    for _ in names:
        writer.write(bytes(4))
    writer.finish()


def config(layers: Any, family: str = "llama") -> dict[str, Any]:
    return {"model_type": family, "num_hidden_layers": layers}


def test_layers_that_the_weights_lack(tmp_path: Path) -> None:
    weights(tmp_path, "model.safetensors", 2)
    for layers in (1, 2, None, "two"):  # fewer are an error of whoever opens the weights
        check_weight_names(config(layers), tmp_path)
    for layers in (3, 99_999):
        with pytest.raises(
            ValueError, match=rf"config.json: num_hidden_layers is {layers}, .* layers 0 to 1;"
        ):
            check_weight_names(config(layers), tmp_path)
    check_weight_names(config(99, "albert"), tmp_path)  # a family whose layers share their weights


def test_an_index_of_files_that_are_not_there(tmp_path: Path) -> None:
    files = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    places = {f"model.layers.{number}.mlp.up_proj.weight": file for number, file in enumerate(files)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (tmp_path / files[0]).write_bytes(b"")
    with pytest.raises(ValueError, match=r"index.json: names model-00002-of-00003.safetensors and 1 more"):
        check_weight_names(config(3), tmp_path)
    for file in files:
        (tmp_path / file).write_bytes(b"")
    check_weight_names(config(3), tmp_path)
    with pytest.raises(ValueError, match="num_hidden_layers is 4"):
        check_weight_names(config(4), tmp_path)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": []}'])
def test_an_index_that_is_none_is_left_to_the_reader(content: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    check_weight_names(config(2), tmp_path)


@pytest.mark.parametrize("name", ["attention_dropout", "resid_pdrop", "hidden_dropout_prob", "dropout"])
@pytest.mark.parametrize("value", [5.0, -0.1, "0.1", True, [0.1], float("nan")])
def test_shares_that_are_none(name: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"config.json: {name}: expected a number from 0 to 1, got"):
        check_dropouts({name: value}, tmp_path)
    for good in (None, 0, 0.1, 1):
        check_dropouts({name: good, "layer_types": ["dropout"]}, tmp_path)
