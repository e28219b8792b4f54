"""Models with adapters as flags ask for them: the base that is named, and what is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from fastsft.arguments import LoraArguments
from fastsft.lora.adapted_model import AdaptedModel
from fastsft.lora.adapter_files import adapter_config_text
from fastsft.lora.attach import as_trained_model, open_model
from fastsft.runtime.messages import collected
from tiny_models import write_model

BOTH_ENGINES = pytest.mark.parametrize("engine", ["native", "generic"])


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "first", "untied")


@pytest.fixture
def adapter(first: Path, tmp_path: Path) -> Path:
    """peft's, on the first model."""
    config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"])
    get_peft_model(AutoModelForCausalLM.from_pretrained(first), config).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def opened(base: Path, adapter: Path, engine: str) -> tuple[str, list[str]]:
    """The base model that the saved adapter is to name, and what was told."""
    with collected() as notices:
        model = open_model(
            str(base), LoraArguments(lora=True, lora_weight_path=str(adapter)), None, 42, engine
        )
    assert isinstance(model, AdaptedModel)
    return json.loads(adapter_config_text(model.settings))["base_model_name_or_path"], notices.told


@BOTH_ENGINES
def test_an_adapter_that_goes_on_over_another_base_names_that_one(
    engine: str, first: Path, adapter: Path, tmp_path: Path
) -> None:
    """Also where the base has moved, and the name that is recorded leads nowhere."""
    second = tmp_path / "second"
    shutil.copytree(first, second)
    line = f"the adapter {adapter} was trained on {first}, and goes on over {second}"
    assert opened(second, adapter, engine) == (str(second), [line])
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": "/not/there"}))
    assert opened(second, adapter, engine)[0] == str(second)


@BOTH_ENGINES
def test_nothing_is_told_of_the_same_base(engine: str, first: Path, adapter: Path, tmp_path: Path) -> None:
    assert opened(first, adapter, engine) == (str(first), [])
    (tmp_path / "link").symlink_to(first)
    assert opened(tmp_path / "link", adapter, engine) == (str(tmp_path / "link"), [])


def test_a_lora_config_of_another_model_names_the_one_that_is_given(first: Path) -> None:
    settings: dict[str, Any] = {"task_type": "CAUSAL_LM", "r": 4, "target_modules": ["q_proj"]}
    config = LoraConfig(**settings, base_model_name_or_path="/not/there")
    with collected() as notices:
        model = as_trained_model(str(first), config)
    assert isinstance(model, AdaptedModel) and model.settings.base_model == str(first)
    assert "/not/there, and goes on over" in notices.told[0]


@BOTH_ENGINES
@pytest.mark.parametrize("words", ['["q_proj","v_proj"]', "['q_proj', 'v_proj']", "q_proj,v_proj"])
def test_targets_in_one_word_are_told(words: str, engine: str, first: Path) -> None:
    flags = LoraArguments(lora=True, lora_target_modules=[words])
    with pytest.raises(ValueError, match="write the names with spaces between them"):
        open_model(str(first), flags, None, 42, engine)
