"""`fastsft export ollama`: Go's template writes what the saved Jinja template writes before a reply."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2
import pytest

from family_models import write_family
from fastsft.cli import main as cli
from fastsft.data.chat.mask_policy import jinja_form_for
from fastsft.data.chat.template_saving import ollama_template
from fastsft.tokenizer import Tokenizer
from go_template import render_go

TALK = ("Hello {{ .System }}?", "Hi\nthere.", "And you?", 'Fine """.', "Good.")
CHATML = ["chatml", "qwen"]
WITH_MARKS = {"llama3": ["llama-3"], "qwen2": CHATML}


def jinja_text(source: str, tokenizer: Tokenizer, messages: list[dict[str, str]]) -> str:
    """As transformers renders a prompt."""

    def refuse(text: str) -> None:
        raise ValueError(text)

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    names = {"bos_token": tokenizer.bos_token or "", "eos_token": tokenizer.eos_token or ""}
    text = environment.from_string(source).render(messages=messages, add_generation_prompt=True, **names)
    return text.removeprefix(names["bos_token"]) if names["bos_token"] else text


def check(tokenizer: Tokenizer) -> None:
    made = ollama_template(tokenizer)
    for system in ("", "Be 'kind'."):
        for count in (1, 3, 5):
            roles = ("user", "assistant")
            chat = [{"role": roles[i % 2], "content": text} for i, text in enumerate(TALK[:count])]
            if system:
                chat.insert(0, {"role": "system", "content": system})
            wanted = jinja_text(str(tokenizer.chat_template), tokenizer, chat)
            assert render_go(made.text, system, chat) == wanted


@pytest.fixture(scope="module", params=["llama2", "llama3", "qwen2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("models") / request.param, request.param)


def test_templates_of_a_family(model: Path) -> None:
    tokenizer = Tokenizer.from_pretrained(model)
    fitting = WITH_MARKS.get(model.name, ["vicuna_v1.1", "llama-2", "mistral"])
    for name in fitting:
        tokenizer.chat_template = jinja_form_for(name, tokenizer)
        check(tokenizer)


def test_what_depends_on_more_than_the_role_is_refused(model: Path) -> None:
    tokenizer = Tokenizer.from_pretrained(model)
    stop = tokenizer.eos_token
    body = "{{ loop.index }}{{ m.content }}{% if m.role == 'assistant' %}" + str(stop) + "{% endif %}"
    tokenizer.chat_template = "{% for m in messages %}" + body + "{% endfor %}"
    with pytest.raises(ValueError, match=r"cannot be written for Ollama: .* more than the role"):
        ollama_template(tokenizer)


def test_a_template_that_rewrites_replies_is_refused(tmp_path: Path) -> None:
    """As Qwen3's, which takes thoughts out of earlier replies."""
    tokenizer = Tokenizer.from_pretrained(write_family(tmp_path / "qwen3", "qwen3"))
    with pytest.raises(ValueError, match=r"for Ollama: it writes earlier replies otherwise than the last"):
        ollama_template(tokenizer)


def test_an_adapter_is_merged_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", "ollama", str(tmp_path)]) == 1
    assert "fastsft merge" not in capsys.readouterr().err
    (tmp_path / "adapter_config.json").write_text("{}")
    assert cli.main(["export", "ollama", str(tmp_path)]) == 1
    assert "make one model of the two with fastsft merge" in capsys.readouterr().err


@pytest.mark.variants("[qwen2]", "[llama3]")
def test_the_file(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "chat_template.jinja").write_text(
        jinja_form_for(WITH_MARKS.get(model.name, ["llama-2"])[0], Tokenizer.from_pretrained(model))
    )
    assert cli.main(["export", "ollama", str(model)]) == 0
    text = (model / "Modelfile").read_text()
    found = re.fullmatch(r'FROM (.+)\nTEMPLATE """(.*)"""\nPARAMETER stop "(.+)"\n', text, re.DOTALL)
    assert found is not None and found[1] == str(model)
    tokenizer = Tokenizer.from_pretrained(model)
    assert found[2] == ollama_template(tokenizer).text
    assert tokenizer.convert_tokens_to_ids(found[3]) is not None
    assert cli.main(["export", "ollama", str(model)]) == 1
    assert "exists" in capsys.readouterr().err
