"""Configurations of strangers: a wrong type is one line that names file and field, before any training."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C
from fastsft.model.causal_lm import CausalLM
from fastsft.model.config import generation_config_to_save, read_generation_config
from fastsft.model.context_length import extend_positions
from fastsft.model.weights import _load_pickled, pickled_files
from fastsft.tokenizer.files import read_chat_template
from fastsft.tokenizer.settings import read_settings

CONFIG = {"model_type": "llama", "max_position_embeddings": 64, "vocab_size": 32}


def write(directory: Path, name: str, content: Any) -> None:
    (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_position_embeddings", "x"),
        ("max_position_embeddings", 1.5),
        ("max_position_embeddings", -1),
        ("max_position_embeddings", True),
        ("max_position_embeddings", 10**30),
        ("vocab_size", [1]),
        ("model_type", ["llama"]),
        ("model_type", {}),
        ("rope_scaling", "linear"),
        ("eos_token_id", "x"),
        ("eos_token_id", [1, "x"]),
        ("pad_token_id", [1]),
        ("architectures", "LlamaForCausalLM"),
    ],
)
def test_a_wrong_type_in_config_json(name: str, value: Any, tmp_path: Path) -> None:
    write(tmp_path, "config.json", {**CONFIG, name: value})
    with pytest.raises(ValueError, match=rf"config\.json: {name}: expected .*, got ") as caught:
        CausalLM.from_pretrained(str(tmp_path))
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_right_types_pass(tmp_path: Path) -> None:
    ids = {"eos_token_id": [1, 2], "bos_token_id": 1, "pad_token_id": -1, "rope_scaling": None}
    write(tmp_path, "config.json", {**CONFIG, **ids, "architectures": ["LlamaForCausalLM"]})
    assert extend_positions(CausalLM.from_pretrained(str(tmp_path)).config, 128) is not None


@pytest.mark.parametrize(
    "content",
    [
        {"eos_token_id": "x"},
        {"eos_token_id": [1, None]},
        {"eos_token_id": {"a": 1}},
        {"bos_token_id": "x"},
        {"pad_token_id": [[]]},
        {"eos_token_id": 1.5},
        {"eos_token_id": 10**40},
        "[" * 100_000,
        '{"a": "\\ud800"}',
    ],
)
def test_generation_settings_are_looked_at_before_training_and_once(content: Any, tmp_path: Path) -> None:
    write(tmp_path, "config.json", CONFIG)
    write(tmp_path, "generation_config.json", content)
    with pytest.warns(UserWarning, match="generation_config.json: expected a JSON object .*; not copied"):
        model = CausalLM.from_pretrained(str(tmp_path))
    (tmp_path / "generation_config.json").unlink()
    os.mkfifo(tmp_path / "generation_config.json")  # nobody looks at it again
    assert model.generation_settings() is None
    assert generation_config_to_save(None, model.config, object())["_from_model_config"]


def test_generation_settings_with_ids_are_copied(tmp_path: Path) -> None:
    content = {"eos_token_id": [1, 2], "bos_token_id": 1, "temperature": 0.5, "do_sample": True}
    write(tmp_path, "generation_config.json", content)
    assert read_generation_config(tmp_path) == content


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"added_tokens_decoder": [1]}, "added_tokens_decoder: expected an object, got a list"),
        ({"added_tokens_decoder": 7}, "added_tokens_decoder: expected an object, got a number"),
        ({"added_tokens_decoder": {"x": "a"}}, "added_tokens_decoder: expected a token id, got 'x'"),
        ({"added_tokens_decoder": {"9" * 5000: "a"}}, "added_tokens_decoder: expected a token id"),
        ({"additional_special_tokens": 7}, "additional_special_tokens: expected a list, got a number"),
        ({"additional_special_tokens": [7]}, 'a special token: expected a text or an object with "content"'),
        ({"bos_token": 7}, "bos_token: expected a text or an object, got a number"),
        ({"bos_token": {"text": "a"}}, 'bos_token: expected a text or an object with "content"'),
        ({"tokenizer_class": ["A"]}, "tokenizer_class: expected a text, got a list"),
        ({"padding_side": 3}, "padding_side: expected a text, got a number"),
        ({"chat_template": {"a": 1}}, "chat_template: expected a text or a list, got an object"),
        ('{"bos_token": "\\ud800"}', "bos_token: expected a text, got a lone surrogate"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_wrong_types_in_tokenizer_config(config: Any, reason: str, tmp_path: Path) -> None:
    write(tmp_path, "tokenizer_config.json", config)
    with pytest.raises(ValueError, match=reason) as caught:
        read_settings(tmp_path)
    assert "tokenizer_config.json" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [[1], "x", 1e400, None, True, -1])
def test_added_tokens_have_ids(value: Any, tmp_path: Path) -> None:
    write(tmp_path, "added_tokens.json", {"<a>": value})
    with pytest.raises(ValueError, match=r"added_tokens\.json: '<a>': expected a token id"):
        read_settings(tmp_path)


def test_a_template_list_with_names_that_are_none(tmp_path: Path) -> None:
    named = [{"name": ["a"], "template": "x"}, {"name": "default", "template": "y"}, 7]
    write(tmp_path, "tokenizer_config.json", {"chat_template": named})
    write(tmp_path, "config.json", {"model_type": ["llama"]})
    assert read_chat_template(tmp_path) == "y"


def test_pickled_weights_that_are_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pytorch_model.bin")
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="got a FIFO"):
        _load_pickled(None, tmp_path)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ('{"weight_map": ' + "[" * 100_000, "nested too deep"),
        ({"weight_map": {"a": 1}}, "expected an object with"),
        (
            {"weight_map": {str(i): f"f{i}" for i in range(20_000)}},
            "at most 10000 files of weights, got 20000",
        ),
    ],
)
def test_an_index_of_pickled_weights(index: Any, reason: str, tmp_path: Path) -> None:
    write(tmp_path, "pytorch_model.bin.index.json", index)
    with pytest.raises(ValueError, match=reason):
        list(pickled_files(tmp_path))


def test_an_index_of_a_million_files_is_refused(tmp_path: Path) -> None:
    names = ",".join(f'"{i}":"f{i}"' for i in range(1_000_000))
    write(tmp_path, "model.safetensors.index.json", f'{{"weight_map":{{{names}}}}}')
    with pytest.raises(ValueError, match="an object of more than 50000 keys"):
        _C.weight_files(str(tmp_path))
