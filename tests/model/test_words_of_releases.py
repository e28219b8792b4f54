"""What is saved means the same to transformers 4 and 5: rotations as each release computes them.

Recorded with transformers 5.24 by tests/golden/versions/record.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from fastsft.model.config import config_to_save
from fastsft.model.config_words import in_both_words, in_older_words, missing_words
from fastsft.model.context_length import extend_positions
from fastsft.model.generic.units import make_units
from fastsft.model.generic.unreached import Unreached
from fastsft.model.generic.weights import tensor_names
from fastsft.model.model_config import ModelConfig
from fastsft.tokenizer.files import compatible_config
from version_words import GOLDEN, cases, newer, older, reading

RECORDED: dict[str, Any] = json.loads(GOLDEN.read_text())
CASES = {name: (family, kind, part) for name, family, kind, part in cases() if name in RECORDED}
IS_OLDER = int(transformers.__version__.split(".")[0]) < 5


def same(found: list[list[float]], wanted: list[list[float]]) -> bool:
    """As sets: a release may hold one rotation twice."""
    return all(any(row == pytest.approx(each, abs=2e-4) for each in wanted) for row in found) and all(
        any(row == pytest.approx(each, abs=2e-4) for each in found) for row in wanted
    )


@pytest.mark.parametrize("name", list(CASES))
def test_newer_words_are_read_by_both(name: str) -> None:
    """The file saved of transformers 5's words: as 5 reads it, recorded, and as the installed one does."""
    saved = in_both_words(newer(*CASES[name]))
    assert same(RECORDED[name]["both"], RECORDED[name]["newer"])
    assert same(reading(saved), RECORDED[name]["newer"])


@pytest.mark.variants("default")
@pytest.mark.skipif(not IS_OLDER, reason="transformers 5 reads the words of 4 recorded here")
@pytest.mark.parametrize("name", list(CASES))
def test_older_words_are_read_by_both(name: str) -> None:
    """The file saved of transformers 4's words: as 5 reads it, recorded, and as 4 reads the source."""
    source = older(*CASES[name])
    assert same(reading(in_both_words(source)), reading(source))
    assert same(RECORDED[name]["older"], reading(source))


def test_all_families_are_recorded() -> None:
    assert len(CASES) == len(RECORDED) == len(list(cases())) > 120


@pytest.mark.parametrize("name", list(CASES))
def test_saved_again_nothing_changes(name: str) -> None:
    for source in (newer(*CASES[name]), older(*CASES[name])):
        saved = in_both_words(source)
        assert in_both_words(saved) == saved and missing_words(saved) == []
        assert all(key in saved for key in source)


def test_layer_kinds_experts_and_numbers() -> None:
    kinds = ["linear_attention", "full_attention"]
    saved = in_both_words({"model_type": "granitemoehybrid", "layer_types": kinds})
    assert saved["layer_types"] == ["mamba", "attention"]
    assert in_both_words({"model_type": "qwen3_next", "layer_types": kinds})["layer_types"] == kinds
    assert in_both_words({"model_type": "qwen3_moe", "num_local_experts": 4})["num_experts"] == 4
    numbers = {"model_type": "mamba2", "time_step_limit": [0.0, {"__float__": "Infinity"}]}
    assert in_both_words(numbers)["time_step_limit"] == [0.0, float("inf")]


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"sliding_window": 8},
        {"local_attention": 16},
        {"local_attention": 16, "sliding_window": 8},
        {"local_attention": 16, "sliding_window": 4},
    ],
)
def test_windows_are_those_of_the_installed_release(source: dict[str, int]) -> None:
    """transformers 4 takes half of local_attention alone, and 5 sliding_window where a file has it."""
    kind = "modernbert-decoder"
    trained = transformers.AutoConfig.for_model(kind, **source).sliding_window
    saved = in_both_words({"model_type": kind, **source})
    assert (saved["local_attention"], saved["sliding_window"]) == (2 * trained, trained)


@pytest.mark.skipif(not IS_OLDER, reason="transformers 5 renames by a mapping of its own")
def test_names_that_a_class_of_transformers_4_renames(tmp_path: Path) -> None:
    """Files that transformers 4.57 saves have model.language_model. for model."""
    source = older("gemma3n_text", "default", None)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**source), dtype=torch.float32
    )
    model.save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    assert any(name.startswith("model.language_model.") for name in held)
    names = tensor_names(model, make_units(model, Unreached()), held)
    assert sorted(names.values()) == sorted(held)
    for name, stored in names.items():
        assert torch.equal(model.state_dict()[name], held[stored])


def test_inner_configurations_are_translated() -> None:
    inner = newer("gemma3_text", "linear", None)
    saved = in_both_words({"model_type": "gemma3", "text_config": inner})["text_config"]
    assert saved["rope_theta"] == 50_000 and saved["rope_local_base_freq"] == 2_000
    assert saved["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "factor 4.0.*2.0"),
        ({"rope_theta": 10_000.0}, "rope_theta 50000.0.*10000.0"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'linear'.*'yarn'"),
    ],
)
def test_contradictions_are_refused(words: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        in_both_words({**newer("llama", "linear", None), **words})


def test_other_local_positions_have_no_older_words(capsys: pytest.CaptureFixture[str]) -> None:
    source = newer("olmo3", "default", None)
    source["rope_parameters"]["sliding_attention"]["rope_theta"] = 7.0
    assert "rope_theta" not in in_both_words(source)
    with pytest.raises(ValueError, match="transformers 4 does not read; install transformers 5"):
        in_older_words(source)


def test_a_script_that_sets_one_word_is_heard() -> None:
    config = ModelConfig(in_both_words(newer("llama", "yarn", None)))
    config.rope_scaling = {"type": "linear", "factor": 2.0}
    saved = config_to_save(config, None, "float32")
    assert saved["rope_scaling"] == {"type": "linear", "factor": 2.0} and saved["rope_theta"] == 50_000
    assert "rope_parameters" not in saved
    config["rope_parameters"] = {"rope_type": "linear", "factor": 3.0, "rope_theta": 9.0}
    saved = config_to_save(config, None, "float32")
    assert (saved["rope_scaling"], saved["rope_theta"]) == ({"rope_type": "linear", "factor": 3.0}, 9.0)


def test_stretched_positions_are_in_both_words() -> None:
    config = ModelConfig(in_both_words(newer("llama", "default", None)))
    assert extend_positions(config, 256) is not None
    saved = config_to_save(config, None, "float32")
    assert saved["rope_scaling"]["factor"] == saved["rope_parameters"]["factor"] == 4.0
    assert saved["rope_theta"] == saved["rope_parameters"]["rope_theta"] == 50_000


def test_tokenizer_words() -> None:
    source = {
        "tokenizer_class": "TokenizersBackend",
        "extra_special_tokens": ["<a>"],
        "backend": "tokenizers",
    }
    saved = compatible_config(source, has_json=True)
    assert saved == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": ["<a>"],
        "backend": "tokenizers",
    }
    assert compatible_config(source, has_json=False)["tokenizer_class"] == "TokenizersBackend"
    named = {"extra_special_tokens": {"image_token": "<i>"}, "tokenizer_class": "Qwen2Tokenizer"}
    assert compatible_config(named, has_json=True) == named
