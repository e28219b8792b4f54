"""System messages of templates that have no place for them: the reason, and the named template that has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_formats import labelled, write_records
from fastsft.data.chat.labelling import (
    LabelSettings,
    describe,
    describe_labels,
    label_identity,
    make_labeller,
)
from fastsft.tokenizer import Tokenizer
from published_models import write_tokenizer
from published_templates import write_model

REFUSE = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
)
# Mistral v0.1's, v0.3's (in front of a last user's message alone), Gemma 2's, and one of another kind.
TEMPLATES = {
    "mistral": (
        REFUSE + "{% for m in messages %}{{ '[INST] ' + m.content + ' [/INST]' if m.role == 'user' "
        "else m.content + '</s>' }}{% endfor %}"
    ),
    "mistral-last": (
        "{% for m in messages %}{% if m.role == 'user' %}[INST] "
        "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
        "{{ m.content }} [/INST]{% elif m.role == 'assistant' %}"
        "{{ m.content }}</s>{% endif %}{% endfor %}"
    ),
    "gemma": (
        REFUSE + "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{{ m.content }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
    "other": (
        REFUSE + "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ '</s>' if m.role == 'assistant' }}\n"
        "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    ),
}
CONTROLS = ("<s>", "</s>", "<start_of_turn>", "<end_of_turn>")
TURN = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
SYSTEM = {"role": "system", "content": "Be kind."}


def report(model: Path, folder: Path, *records: Any, **settings: Any) -> Any:
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=512)
    chosen = LabelSettings(mask_policy="spans", **settings)
    using = make_labeller(tokenizer.native, 512, 0, chosen, tokenizer=tokenizer, self_test=True)
    return labelled(write_records(folder / "d.json", list(records)), using).report


@pytest.mark.parametrize("name", ["mistral", "gemma", "other"])
@pytest.mark.parametrize("train_turns", ["all", "each"])
def test_the_reason_names_a_template_that_writes_them(name: str, train_turns: str, tmp_path: Path) -> None:
    named = {"bos_token": "<s>", "eos_token": "<end_of_turn>" if name == "gemma" else "</s>"}
    model = write_tokenizer(tmp_path / "m", TEMPLATES[name], CONTROLS, named)
    records = [{"messages": [SYSTEM, *TURN]}, {"messages": TURN}]
    seen = report(model, tmp_path, *records, train_turns=train_turns)
    reason = str(seen.entries["template_refuses"].reason)
    assert seen.num_excluded == 1 and "it writes no system message in front of a reply" in reason
    assert "\ue000" not in reason and "ue000" not in reason
    if name == "other":
        assert "leave system messages out" in reason
        return
    assert f"training with --template {name} writes it before the first user's text" in reason
    assert report(model, tmp_path, *records, template=name).num_without_labels == 0


@pytest.mark.parametrize("train_turns", ["all", "each"])
def test_one_before_the_last_users_text_is_trained_as_the_model_is_asked(
    train_turns: str, tmp_path: Path
) -> None:
    """Mistral v0.3's and Nemo's: it is in the prompt, and not in the text of the whole conversation."""
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    model = write_tokenizer(tmp_path / "m", TEMPLATES["mistral-last"], CONTROLS, named)
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=512)
    chosen = LabelSettings(mask_policy="spans", train_turns=train_turns)
    using = make_labeller(tokenizer.native, 512, 0, chosen, tokenizer=tokenizer, self_test=True)
    again = [{"role": "user", "content": "He"}, {"role": "assistant", "content": "Ha"}]
    seen = labelled(write_records(tmp_path / "d.json", [{"messages": [SYSTEM, *TURN, *again]}]), using)
    rows = [(seen.dataset.ids(i).tolist(), seen.dataset.learned(i)) for i in range(len(seen.dataset))]
    asked = ["[INST] Be kind.\n\nHi [/INST]", "[INST] Hi [/INST]Ho</s>[INST] Be kind.\n\nHe [/INST]"]
    texts = [
        (tokenizer.decode(ids[:begin]), tokenizer.decode(ids[begin:end])) for ids, ((begin, end),) in rows
    ]
    assert texts == list(zip(asked, ["Ho</s>", "Ha</s>"], strict=True))
    assert seen.report.num_excluded == 0


def test_other_reasons_stand_alone(tmp_path: Path) -> None:
    source = (
        "{% for m in messages %}{{ '[INST] ' + m.role + m.content + ' [/INST]' if m.role != 'assistant' "
        "else m.content + '</s>' }}{{ raise_exception('no cats') if m.content == 'cat' }}{% endfor %}"
    )
    model = write_tokenizer(tmp_path / "m", source, CONTROLS, {"bos_token": "<s>", "eos_token": "</s>"})
    records = [
        {"messages": [SYSTEM, *TURN]},
        {"messages": [SYSTEM, {"role": "user", "content": "cat"}, TURN[1]]},
    ]
    seen = report(model, tmp_path, *records)
    assert str(seen.entries["template_refuses"].reason).endswith("refuses the conversation: no cats")


RECORDS: list[dict[str, Any]] = [
    {"messages": TURN},
    {"messages": [SYSTEM, *TURN]},
    {"messages": [{"role": "system", "content": ""}, *TURN]},
    {"messages": TURN, "system": "Be brave."},
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}] * 2},
    {"instruction": "Hi", "output": "Ho"},
]
HOUSE = "You are of the house.\nBe <s> short."


def with_system(record: dict[str, Any]) -> dict[str, Any]:
    """The record with the system text that a person would write into it."""
    first = record.get("messages", [{}])[0]
    has_own = record.get("system") or (first.get("role") == "system" and first["content"])
    return record if has_own else {**record, "system": HOUSE}


def rows_of(model: Path, folder: Path, records: list[dict[str, Any]], **settings: Any) -> Any:
    found = []
    for record in records:
        tokenizer = Tokenizer.from_pretrained(model, model_max_length=512)
        chosen = LabelSettings(mask_policy="spans", **settings)
        using = make_labeller(tokenizer.native, 512, 0, chosen, tokenizer=tokenizer, self_test=True)
        seen = labelled(write_records(folder / "d.json", [record]), using)
        found += [(seen.dataset.ids(i).tolist(), seen.dataset.learned(i)) for i in range(len(seen.dataset))]
    return found


@pytest.mark.parametrize(
    ("name", "template"),
    [("qwen2.5", None), ("qwen3", None), ("llama-3.1", None), ("mistral-small-3.2", None),
     ("qwen2.5", "chatml"), ("mistral-nemo", "vicuna_v1.1"), ("mistral-nemo", "llama-2")],
)  # fmt: skip
@pytest.mark.parametrize("train_turns", ["all", "each"])
def test_default_system_is_the_system_text_of_records_without_one(
    name: str, template: str | None, train_turns: str, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "m", name)
    settings: dict[str, Any] = {
        "template": template,
        "train_turns": train_turns,
        "template_date": "2026-01-02",
    }
    ours = rows_of(model, tmp_path, RECORDS, default_system=HOUSE, **settings)
    assert ours == rows_of(model, tmp_path, [with_system(each) for each in RECORDS], **settings)
    assert ours != rows_of(model, tmp_path, RECORDS, **settings)


def test_default_system_is_part_of_what_labels_depend_on(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", "qwen2.5")
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=512)

    def using(text: str | None) -> Any:
        chosen = LabelSettings(mask_policy="spans", template="chatml", default_system=text)
        return make_labeller(tokenizer.native, 512, 0, chosen, tokenizer=tokenizer)

    prints = [using(text).options.fingerprint for text in (None, "", "a", "b")]
    assert prints[0] == prints[1] and len(set(prints)) == 3
    assert "default_system" not in describe(using(""))
    described = describe(using("Be kind. " * 20))
    assert label_identity(described)["default_system"] == "Be kind. " * 20
    assert "--default_system Be kind. Be kind. " in describe_labels(described)
    with pytest.raises(ValueError, match="--default_system needs --mask_policy spans"):
        make_labeller(tokenizer.native, 512, 0, LabelSettings(default_system="a"), tokenizer=tokenizer)


def test_a_template_without_a_place_for_it_is_named(tmp_path: Path) -> None:
    model = write_tokenizer(
        tmp_path / "m", TEMPLATES["mistral"], CONTROLS, {"bos_token": "<s>", "eos_token": "</s>"}
    )
    with pytest.raises(ValueError, match="system"):
        report(model, tmp_path, {"messages": TURN}, default_system="Be kind.")
