"""`fastsft export ollama`: the Modelfile, and what is refused."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import jinja2
import pytest

from family_models import write_family
from fastsft.cli import main as cli
from fastsft.data.chat.mask_policy import jinja_form_for
from fastsft.data.chat.ollama.export import ollama_template
from fastsft.data.chat.ollama.go_execution import render_go
from fastsft.data.chat.ollama.requests import request
from fastsft.tokenizer import Tokenizer
from published_models import CHATML as CHATML_TOKENS
from published_models import write_tokenizer
from published_templates import write_model

LOST = {
    "hermes-3": ["tools are left out: they have a chat template of their own, tool_use"],
    "qwen3-coder": ["tools are left out: it writes tools in a form of its own"],
    "gpt-oss": ["tools are left out: it writes tools in a form of its own", "date: that of each request"],
    "deepseek-r1-distill": ["tools are left out: the chat template writes calls, but no tools"],
}
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
            assert render_go(made.text, request(chat)) == wanted


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
    with pytest.raises(ValueError, match=r"for Ollama: what it writes .*; the way out: fastsft export gguf"):
        ollama_template(tokenizer)


DATED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + ' ' }}{{ strftime_now('FORM') }}"
    "{{ '\n' + m.content }}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def dated(folder: Path, form: str) -> Tokenizer:
    source = DATED.replace("FORM", form)
    return Tokenizer.from_pretrained(
        write_tokenizer(folder, source, CHATML_TOKENS, {"eos_token": "<|im_end|>"})
    )


@pytest.mark.parametrize("form", ["%d %B %Y", "%b %d, %y", "%Y-%m-%d", "%%%m/%d: %F"])
def test_a_date_is_that_of_the_request(form: str, tmp_path: Path) -> None:
    made = ollama_template(dated(tmp_path / "m", form))
    assert "date: that of each request, written as the chat template does" in made.notes
    for day in (date(2027, 2, 3), date(2031, 12, 30), date(2030, 5, 1)):
        chat = [{"role": "user", "content": "Hi"}]
        expected = f"<|im_start|>user {day.strftime(form)}\nHi<|im_end|>\n<|im_start|>assistant\n"
        assert render_go(made.text, request(chat), day.isoformat()) == expected


@pytest.mark.parametrize("form", ["%H:%M", "%A", "%-d"])
def test_a_date_that_ollama_cannot_write_is_refused(form: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"it writes the date as '{form}', and Ollama has no %"):
        ollama_template(dated(tmp_path / "m", form))


@pytest.mark.parametrize("name", LOST)
@pytest.mark.variants("[hermes-3]", "[deepseek-r1-distill]")
def test_what_is_lost_is_said(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line names the reason; those of tools the way out."""
    model = write_model(tmp_path / name, name)
    (model / "config.json").write_text("{}")
    assert cli.main(["export", "ollama", str(model)]) == 0
    said = capsys.readouterr().out
    for line in LOST[name]:
        assert line in said
    assert "llama-server --jinja" in said and "strftime_now" not in said
    assert ".ToolCalls" not in (model / "Modelfile").read_text()


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
    gguf = model / "model of mine.gguf"
    assert cli.main(["export", "ollama", str(model), "--overwrite", "--gguf", str(gguf)]) == 1
    assert "no such file; fastsft export gguf writes one" in capsys.readouterr().err
    assert (model / "Modelfile").read_text() == text
    gguf.write_bytes(b"GGUF")
    assert cli.main(["export", "ollama", str(model), "--overwrite", "--gguf", str(gguf)]) == 0
    assert (model / "Modelfile").read_text() == text.replace(str(model), str(gguf), 1)
    assert cli.main(["export", "ollama", str(model)]) == 1
    assert "exists" in capsys.readouterr().err
