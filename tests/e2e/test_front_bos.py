"""A Jinja template that writes no BOS, with a tokenizer that puts one in front of a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fastsft
from family_models import write_family
from fastsft.cli import main as cli
from fastsft.data.chat.ollama.export import ollama_template
from fastsft.data.chat.prompts import Prompts
from fastsft.tokenizer.files import BASE_NAME
from fastsft.train import train
from golden_text import human_gpt

# Tulu's, and Zephyr's, which begins with a line break that trim_blocks takes.
TULU = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] }}"
    "{{ eos_token if m['role'] == 'assistant' }}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
INDENTED = f"  {{% if true %}}\n{{% endif %}}\n{TULU}"
FOR_TOOLS = "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}" + TULU
BEGUN = "{{ bos_token }}" + TULU
TOOLS = [{"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {}}}]
MESSAGES = [
    {"role": role, "content": text}
    for role, text in zip(("user", "assistant") * 2, ("Hi\n", "Ho.", "And é?", "No."), strict=True)
]


@pytest.fixture(params=[TULU, INDENTED], ids=["tulu", "indented"])
def flags(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    model = write_family(tmp_path / "model", "llama2")
    (model / "chat_template.jinja").write_text(request.param)
    texts = [message["content"] for message in MESSAGES]
    (tmp_path / "d.json").write_text(json.dumps([{"conversations": human_gpt(*texts)}] * 4))
    return {
        "model_name_or_path": str(model), "data_path": str(tmp_path / "d.json"),
        "output_dir": str(tmp_path / "out"), "max_steps": 1, "per_device_train_batch_size": 4,
        "model_max_length": 256, "use_cpu": True, "report_to": "none", "data_cache": "none",
        "mask_policy": "spans",
    }  # fmt: skip


def rows(flags: dict[str, Any], model: str) -> list[tuple[int, bool]]:
    """Of the first record: ids, and which are learned."""
    seen = fastsft.inspect(model, flags["data_path"], mask_policy="spans", model_max_length=256, n=1)
    return [(token.id, token.is_learned) for token in seen.records[0].tokens]


def test_the_saved_template_writes_it(flags: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoTokenizer

    train(flags)
    out, base = Path(flags["output_dir"]), flags["model_name_or_path"]
    said = " ".join(capsys.readouterr().out.split())
    assert "it writes no BOS, and labels have the tokenizer's in front; the saved model's writes it" in said
    assert (out / BASE_NAME).read_text() == (Path(base) / "chat_template.jinja").read_text()
    assert (out / "chat_template.jinja").read_text().startswith("{{ bos_token }}")

    trained, theirs = rows(flags, base), AutoTokenizer.from_pretrained(out, use_fast=False)
    ids = [token for token, _ in trained]
    assert ids[0] == 1 and ids.count(1) == 1
    assert theirs.apply_chat_template(MESSAGES) == ids
    prompt = theirs.apply_chat_template(MESSAGES[:-1], add_generation_prompt=True)
    assert prompt == ids[: len(prompt)]
    assert [learned for _, learned in trained[len(prompt) - 1 :][:2]] == [False, True]


@pytest.mark.variants("[indented]")
def test_what_reads_the_saved_model_agrees(flags: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Chat, export and a second training, which has nothing new to say of the template."""
    train(flags)
    capsys.readouterr()
    out, base = flags["output_dir"], flags["model_name_or_path"]
    of_base, of_saved = (fastsft.Tokenizer.from_pretrained(model) for model in (base, out))
    assert Prompts(of_saved).ids(MESSAGES[:-1]) == Prompts(of_base).ids(MESSAGES[:-1])
    assert ollama_template(of_saved) == ollama_template(of_base)
    assert rows(flags, out) == rows(flags, base)
    train({**flags, "model_name_or_path": out, "output_dir": f"{out}2"})
    assert "writes no BOS" not in capsys.readouterr().out
    again = Path(f"{out}2", "chat_template.jinja").read_text()
    assert again == Path(out, "chat_template.jinja").read_text()
    assert cli.main(["verify", f"{out}2"]) == 0


def test_the_bases_template_is_left_in_place(
    flags: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    train({**flags, "save_chat_template": "base"})
    said = " ".join(capsys.readouterr().out.split())
    assert "labels have the tokenizer's in front; the saved model's writes none either" in said
    out, base = Path(flags["output_dir"]), Path(flags["model_name_or_path"])
    assert (out / "chat_template.jinja").read_text() == (base / "chat_template.jinja").read_text()
    assert not (out / BASE_NAME).exists()


@pytest.mark.covering
@pytest.mark.parametrize("save", ["trained", "base"])
@pytest.mark.parametrize("form", ["config", "files"])
@pytest.mark.parametrize("default", [TULU, BEGUN], ids=["without", "with"])
def test_the_template_for_tools_writes_it_too(
    default: str, form: str, save: str, flags: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of both forms in which transformers saves several templates; also where only that one lacks BOS."""
    from transformers import AutoTokenizer

    base, out = Path(flags["model_name_or_path"]), Path(flags["output_dir"])
    write_both(base, default, form)
    record = {"messages": MESSAGES, "tools": TOOLS}
    Path(flags["data_path"]).write_text(json.dumps([record, {"messages": MESSAGES}] * 2))
    train({**flags, "save_chat_template": save})
    named = "chat template tool_use" if default == BEGUN else "chat template"
    assert f"{named}: it writes no BOS" in " ".join(capsys.readouterr().out.split())
    theirs = AutoTokenizer.from_pretrained(out, use_fast=False)
    with_tools = theirs.apply_chat_template(MESSAGES, tools=TOOLS)
    ids = [token for token, _ in rows(flags, str(base))]
    assert with_tools == ids[save == "base" :] and ids.count(1) == 1
    if save == "trained":
        assert theirs.apply_chat_template(MESSAGES)[0] == 1
        assert rows(flags, str(out)) == rows(flags, str(base))
        assert cli.main(["verify", str(out)]) == 0


def write_both(model: Path, default: str, form: str) -> None:
    """The template `default` and one for tools."""
    if form == "files":
        (model / "chat_template.jinja").write_text(default)
        (model / "additional_chat_templates").mkdir()
        (model / "additional_chat_templates" / "tool_use.jinja").write_text(FOR_TOOLS)
        return
    (model / "chat_template.jinja").unlink()
    config = json.loads((model / "tokenizer_config.json").read_text())
    named = {"default": default, "tool_use": FOR_TOOLS}
    config["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
