"""The published models that benchmarks and memory plans are stated for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastsft import _C

FOLDER = Path(__file__).parents[2] / "benchmarks" / "configs"
# Bytes of the bfloat16 weights in each model's published index, divided by two.
PUBLISHED = {
    "vicuna-7b": 6_738_415_616,
    "vicuna-13b": 13_015_864_320,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-8b": 8_190_735_360,
}


# For smoke runs; and a vision-text model, whose text decoder the generic engine trains.
OTHERS = {"tiny", "gemma-3-4b"}


def test_every_config_is_checked() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} - OTHERS == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_number_of_parameters_is_the_published_one(name: str) -> None:
    assert _C.count_parameters((FOLDER / f"{name}.json").read_text()) == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_transformers_reads_the_same_model(name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = json.loads((FOLDER / f"{name}.json").read_text())
    config = AutoConfig.for_model(**{**fields, "num_hidden_layers": 1})  # the other layers are alike
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    ours = dict(_C.parameter_shapes(json.dumps(config.to_dict())))
    assert ours == {key: list(parameter.shape) for key, parameter in model.named_parameters()}
    assert model.config.architectures == [type(model).__name__]
