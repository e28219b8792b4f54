"""Names of templates as people write them: the nearest one is named, and `model`."""

from __future__ import annotations

import pytest

from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings
from fastsft.data.chat.mask_policy import resolve_script_policy
from fastsft.data.chat.template_choice import template_name

MEANT = {
    "qwen2.5": "qwen", "Qwen3": "qwen", "chatML": "chatml", "chat-ml": "chatml", "llama3": "llama-3",
    "llama3.1": "llama-3", "Llama-3-Instruct": "llama-3", "llama2": "llama-2", "Vicuna": "vicuna",
    "vicunna": "vicuna", "vicuna_v1.5": "vicuna", "mistral-v3": "mistral", "mistrall": "mistral",
    "phi3": "phi-3", "phi4": "phi", "zephir": "zephyr", "gemma2": "gemma", "alpacca": "alpaca",
    "deepseek": "deepseek-chat", "tinyllama": "TinyLlama",
}  # fmt: skip


@pytest.mark.parametrize("name", MEANT)
def test_the_nearest_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=rf'unknown chat template "{name}"') as raised:
        template_name(name)
    said = str(raised.value)
    assert (
        f"; the nearest is {MEANT[name]}; --template model is the model's own" in said
        or name == "vicuna_v1.5"
    )
    assert "known: model, " in said and said.startswith("--template: ")


@pytest.mark.parametrize("name", ["kimi", "default", "none", "x", "glm4", "3", ""])
def test_none_is_near(name: str) -> None:
    with pytest.raises(ValueError, match="--template model is the model's own") as raised:
        template_name(name)
    assert "nearest" not in str(raised.value)


def test_each_known_name_and_alias_is_taken() -> None:
    for name in _C.chat_templates():
        assert template_name(name) == name
    assert template_name("vicuna") == "vicuna_v1.1" and template_name("phi-3") == "phi"


def test_auto_says_the_same() -> None:
    with pytest.raises(ValueError, match="the nearest is chatml"):
        resolve_script_policy(LabelSettings(mask_policy="auto", template="chatML"))
