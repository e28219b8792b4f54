"""Named templates next to those of LLaMA-Factory: a line where the same name means another text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.data.chat.template_choice import namesake_line
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN
from published_models import write_tokenizer

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
