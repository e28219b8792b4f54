"""Decides which template writes the text of another trainer's named template.

The tables come from rendering both: conversations of one and two turns, with and without a system text
(LLaMA-Factory 0.9.5, axolotl 0.19.0; published templates of the models).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fastsft.arguments.imports.draft import Draft

OWN = "model"
# LLaMA-Factory's names -> the template here with the same text; none writes tools
_SAME = {
    **dict.fromkeys(
        ("chatml", "cpm4", "falcon_h1", "intern_s1", "qwen3_nothink", "qwen3_5_nothink", "smollm", "yi"),
        "chatml",
    ),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3n"), "gemma"),
    "llama3": "llama-3", "phi": "phi", "deepseek3": OWN,
}  # fmt: skip


class Other(NamedTuple):
    """A template that is written instead, and what it writes otherwise.

    system: the system text there of records without one, which becomes `default_system`.
    """

    template: str
    difference: str
    system: str = ""


_QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
_THOUGHTS = "each reply is a row of its own, and thoughts of earlier replies are not in it; there they are"
_SYSTEM = "there, records without a system text have one"
_OTHER = {
    "qwen": Other(OWN, "there it is the text of Qwen2.5-Instruct, other models may have another", _QWEN),
    **dict.fromkeys(("qwen3", "qwen3_5", "qwen3_6"), Other(OWN, _THOUGHTS)),
    **dict.fromkeys(("qwen2_vl", "qwen2_audio"), Other("qwen", "")),
    "mistral": Other(
        OWN,
        "there the text is that of Mistral-7B-Instruct-v0.3 with a system text in the first question; other "
        "models of Mistral have other spaces",
    ),
    "mistral_small": Other(OWN, "the model's own writes a default system text"),
    "llama2": Other("llama-2", "here a space is on both sides of a reply"),
    "vicuna": Other(
        "vicuna_v1.1", "here, as FastChat has it, a space is behind a system text and before replies"
    ),
    "zephyr": Other("zephyr", "here a line break follows </s>", "You are Zephyr, a helpful assistant."),
    "alpaca": Other(
        "alpaca_stanford", "here no blank line follows a reply, and one follows a record's own system text"
    ),
    "chatml_de": Other("chatml", "", "Du bist ein freundlicher und hilfsbereiter KI-Assistent."),
    "smollm2": Other("chatml", "", "You are a helpful AI assistant named SmolLM, trained by Hugging Face."),
    "opencoder": Other("chatml", "", "You are OpenCoder, created by OpenCoder Team."),
    "lfm2": Other("chatml", "", "You are a helpful AI assistant."),
    **dict.fromkeys(("dbrx", "intern2"), Other("chatml", f"{_SYSTEM}: give it as default_system")),
}
# axolotl's names -> the template here with the same text
_AXOLOTL = {
    **dict.fromkeys(("chatml", "falcon_h1", "nemotron_h"), "chatml"),
    **dict.fromkeys(("gemma", "gemma3", "gemma3n"), "gemma"),
    **dict.fromkeys(("phi_3", "phi_35"), "phi"),
    **dict.fromkeys(("qwen_25", "qwen3", "qwen3_5", "deepseek_v3", "gemma4", "mistral_v3_tekken"), OWN),
    "llama3": "llama-3", "qwen2_vl": "qwen", "llama3_2_vision": OWN,
}  # fmt: skip
_FAMILY = "the published models of this name have the same text"
_NOT_COMPARED = "the model's own template is written, its text was not compared: see it with fastsft inspect"


def llamafactory_template(draft: Draft) -> None:
    """Read `template`: the template whose text is the same, else the nearest."""
    name = draft.get("template")
    if name is None:
        draft.left.pop("template", None)
        draft.default("mask_policy", "spans")
        draft.default("template", OWN, "without a template it is made of the tokenizer's")
        return
    if name in _SAME:
        draft.carry("template", written(_SAME[str(name)]))
        return
    other = _OTHER.get(str(name), Other(OWN, _NOT_COMPARED))
    values = written(other.template)
    if other.template == OWN and other.system and _writes(draft, other.system):
        draft.carry("template", values, "it writes the same default system text")
        return
    if other.system and not draft.is_on("default_system"):
        values["default_system"] = other.system
    if other.difference:
        draft.lose("template", other.difference, values)
    else:
        draft.carry("template", values)


def axolotl_template(draft: Draft, key: str) -> None:
    """Read `chat_template`; by default the model's own."""
    name = str(draft.get(key, "tokenizer_default"))
    if name.startswith("tokenizer_default"):
        draft.carry(key, written(OWN))
    elif name == "jinja":
        draft.lose(key, "write the text to chat_template.jinja in the model directory", written(OWN))
    else:
        same = _AXOLOTL.get(name)
        if same is None:
            draft.lose(key, _NOT_COMPARED, written(OWN))
        else:
            draft.carry(key, written(same), _FAMILY if same == OWN else "")


def written(template: str) -> dict[str, object]:
    """Return the values with which a template makes the labels."""
    return {"mask_policy": "spans", "template": template}


def _writes(draft: Draft, system: str) -> bool:
    """True if the template in the model's directory has a system text; without a directory, by its name."""
    model = str(draft.get("model_name_or_path", ""))
    place = Path(draft.found(model) or model)
    if not place.is_dir():
        return "qwen2.5" in model.lower() and "instruct" in model.lower() and "math" not in model.lower()
    files = [place / name for name in ("chat_template.jinja", "tokenizer_config.json")]
    return any(system in file.read_text("utf-8", errors="replace") for file in files if file.is_file())
