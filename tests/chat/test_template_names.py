"""Names of templates as people write them: the nearest is named; LLaMA-Factory's other texts get a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.data.chat.mask_policy import resolve_script_policy
from fastsft.data.chat.template_choice import namesake_line, template_name
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN
from published_models import write_tokenizer

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


THEIRS = json.loads((GOLDEN / "chat_templates" / "llama_factory.json").read_text())
NAMES = sorted({name.split()[0] for name in THEIRS})
CONTROLS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<end_of_turn>", "<|end|>")
TURNS = [("human", "Hi"), ("gpt", "Ho"), ("human", "He"), ("gpt", "Ha")]


def ours(model: Path, name: str, **more: str) -> str:
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=512)
    settings = LabelSettings(mask_policy="spans", template=name)
    using = make_labeller(tokenizer.native, 512, 0, settings, tokenizer=tokenizer)
    record = {"conversations": [{"from": role, "value": text} for role, text in TURNS], **more}
    return str(_C.explain_record(json.dumps(record), using).text)


@pytest.mark.parametrize("name", NAMES)
def test_a_line_where_the_text_is_another(name: str, tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path / "m", "", CONTROLS, {"bos_token": "<s>", "eos_token": "</s>"})
    texts = {"plain": ours(model, name), "system": ours(model, name, system="Be kind.")}
    same = [
        texts[kind].replace("<s>", "").strip() == THEIRS[f"{name} {kind}"].replace("<s>", "").strip()
        for kind in texts
    ]
    line = namesake_line(name)
    assert (line == "") is all(same)
    assert not line or f"--template {name}: LLaMA-Factory's template of this name is another" in line


def test_the_line_comes_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastsft.runtime.messages._said", set())
    model = write_tokenizer(tmp_path / "m", "", CONTROLS, {"bos_token": "<s>", "eos_token": "</s>"})
    for name in ("alpaca", "alpaca", "phi", "chatml"):
        ours(model, name)
    assert [record.message.split(":")[0] for record in caplog.records] == ["--template alpaca"]
