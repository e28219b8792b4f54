"""A template of LLaMA-Factory counts as carried only if the text that LLaMA-Factory wrote is the one here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastsft import _C
from fastsft.arguments.imports.draft import Draft, Fate
from fastsft.arguments.imports.templates import llamafactory_template
from golden_text import GOLDEN

# Rendered by LLaMA-Factory, with and without a system text
THEIRS = json.loads((GOLDEN / "chat_templates" / "llama_factory.json").read_text())
NAMES = sorted({name.partition(" ")[0] for name in THEIRS})
TURNS = [("Hi", "Ho"), ("He", "Ha")]


def decided(name: str, **given: str) -> tuple[str, Fate, str | None]:
    draft = Draft({"template": name, **given}, Path())
    llamafactory_template(draft)
    system = draft.values.get("default_system")
    return str(draft.values["template"]), draft.rows[0].fate, None if system is None else str(system)


def text_of(name: str, system: str | None) -> str:
    """Return the text of the turns by a named template, without BOS."""
    template = _C.find_chat_template(name)
    said = template.system if system is None else system
    head = f"{template.before_system}{said}{template.after_system}" if said else ""
    text = "" if template.system_in_user else head
    for turn, (user, reply) in enumerate(TURNS):
        inner = head if template.system_in_user and turn == 0 else ""
        text += f"{template.before_user}{inner}{user}{template.after_user}{template.before_assistant}{reply}"
        text += f"{template.before_stop}{template.stop_token}{template.after_stop}"
    return text


@pytest.mark.parametrize("name", NAMES)
def test_carried_only_with_the_same_text(name: str) -> None:
    template, fate, default = decided(name)
    if template == "model":
        assert fate is Fate.LOST  # without the model nothing is known of its template
        return
    same = all(
        text_of(template, system).strip() == THEIRS[f"{name} {kind}"].replace("<s>", "").strip()
        for kind, system in (("plain", default), ("system", "Be kind."))
    )
    assert (fate is Fate.CARRIED) is same


QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


@pytest.mark.parametrize(
    ("source", "fate", "system"),
    [
        (f"{{{{ '{QWEN}' }}}}", Fate.CHANGED, None),
        ("{{ 'You are a helpful assistant.' }}", Fate.LOST, QWEN),
    ],
)
def test_qwen_by_the_template_of_the_directory(
    source: str, fate: Fate, system: str | None, tmp_path: Path
) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    assert decided("qwen", model_name_or_path=str(tmp_path)) == ("model", fate, system)
    assert decided("qwen", model_name_or_path="Qwen/Qwen2.5-7B-Instruct")[1:] == (Fate.CHANGED, None)
    assert decided("qwen", model_name_or_path="Qwen/Qwen2.5-7B")[1:] == (Fate.LOST, QWEN)


def test_a_default_system_of_the_file_counts() -> None:
    assert decided("smollm2") == ("chatml", Fate.CARRIED, "You are a helpful AI assistant named SmolLM, "
                                  "trained by Hugging Face.")  # fmt: skip
    assert decided("smollm2", default_system="Be kind.") == ("chatml", Fate.CARRIED, None)
