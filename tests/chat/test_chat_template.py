"""The model's own Jinja template: sandbox, limits, learned spans (docs/spec/reliability.md, row S5)."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from chat_tokenizers import llama_with_specials, named
from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.data.chat.model_template import ModelTemplate, _Renderer
from fastsft.runtime import worker as worker_module
from fastsft.runtime.worker import isolated_command, isolated_environment
from fastsft.tokenizer.files import read_chat_template
from golden_text import human_gpt

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def template(source: str, seconds: float = 5.0) -> ModelTemplate:
    native = llama_with_specials()
    return ModelTemplate(source, named(native), native, seconds=seconds)


def explain(model: ModelTemplate, messages: list[Any], **options: Any) -> Any:
    chosen = _C.LabelOptions(
        mask_policy="spans", chat_template="model", max_length=4096, on_bad_sample="skip", **options
    )
    text = json.dumps({"conversations": messages})
    try:
        return _C.explain_record(text, _C.Labeller(llama_with_specials(), chosen, model))
    finally:
        model.close()


def learned(seen: Any) -> str:
    """The text with learned tokens between brackets."""
    text, inside = b"", False
    for _, begin, end, is_learned in seen.tokens:
        text += (b"[" if is_learned else b"]") if is_learned != inside else b""
        text, inside = text + seen.text_bytes[begin:end], is_learned
    return text.decode() + ("]" if inside else "")


HOSTILE = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}",
    "{{ messages|attr('__class__') }}",
    "{{ ''['__class__'] }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{{ '%s'.__mod__.__func__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__closure__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ ''.__init_subclass__() }}",
    "{% set x = messages.__len__.__self__ %}{{ x }}",
    "{{ dict.mro() }}",
    "{{ (messages|map(attribute='__class__')|list)[0].__name__ }}",
    "{{ lipsum.__globals__['os'] }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
]


@pytest.mark.parametrize("payload", HOSTILE)
def test_the_sandbox_holds(payload: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="chat template") as caught:
        template(payload + CHATML)
    assert "uid=" not in str(caught.value) and "root:" not in str(caught.value)


ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ 10 ** (10 ** 9) }}",
]


@pytest.mark.parametrize("payload", ENDLESS)
def test_time_is_limited(payload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastsft.data.chat.model_template._GRACE", 0.5)
    begin = time.monotonic()
    with pytest.raises(ValueError, match=r"takes more than|does not compile"):
        template(payload + CHATML, seconds=0.5)
    assert time.monotonic() - begin < 60  # it ends at all


# Texts that are compared up to their last letter, a million times.
_LONG = "{% set b, c = 'a' * 999999 ~ 'b', 'a' * 999999 ~ 'c' %}"
IN_ONE_CALL = (
    f"{_LONG}{{{{ ([b] * 999999).count(c) }}}}",
    f"{_LONG}{{{{ c in [b] * 999999 }}}}",
    f"{_LONG}{{{{ ([b, c] * 99999) | sort(case_sensitive=true) | length }}}}",
)


@pytest.mark.variants(".count(")
@pytest.mark.parametrize("payload", IN_ONE_CALL)
def test_one_call_takes_no_longer(payload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's timer waits for the end of a call: the process is ended once it has computed too long."""
    monkeypatch.setattr("fastsft.data.chat.model_template._GRACE", 1.0)
    asks, reads = _Renderer.ask_all, worker_module.cpu_seconds
    seen: list[float] = []

    def ask(renderer: _Renderer, requests: Any) -> Any:
        process = renderer._start().process
        seen[:] = [reads(process)]
        process.send_signal(signal.SIGSTOP)  # it gets a core a little later
        threading.Timer(0.3, process.send_signal, (signal.SIGCONT,)).start()
        return asks(renderer, requests)

    def read(process: subprocess.Popen[bytes]) -> float:
        seen.append(reads(process))
        return seen[-1]

    model = template(
        f"{{% if messages[0].content == 'x' %}}{payload}{{% endif %}}{CHATML}{PROMPT}", seconds=0.5
    )
    monkeypatch.setattr(worker_module, "cpu_seconds", read)
    monkeypatch.setattr(_Renderer, "ask_all", ask)
    (hung,) = explain(model, human_gpt("x", "Ho")).findings
    assert "takes more than 1.5 s" in hung.reason
    assert 1.5 <= seen[-1] - seen[0] < 1.8


@pytest.mark.thorough
def test_one_call_ends_also_where_nobody_waits_for_it() -> None:
    settings = {"source": IN_ONE_CALL[0], "tokens": {}, "date": "2026-11-26", "adds_bos": False, "ends": ()}
    process = subprocess.Popen(
        isolated_command("fastsft.data.chat.rendering.main", ("jinja2", "markupsafe")),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=isolated_environment(),
    )  # fmt: skip
    process.communicate(f'{json.dumps({**settings, "seconds": 0.1})}\n"endings"\n'.encode(), timeout=120)
    assert process.returncode == -signal.SIGXCPU


def test_a_process_that_gets_no_core_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the same records are learned: limits are of computing, not of the clock."""
    monkeypatch.setattr("fastsft.data.chat.model_template._GRACE", 0.0)
    starts, stopped = _Renderer._start, []

    def start(renderer: _Renderer) -> Any:
        started = starts(renderer)
        started.process.send_signal(signal.SIGSTOP)
        threading.Timer(1.0, started.process.send_signal, (signal.SIGCONT,)).start()
        stopped.append(started)
        return started

    monkeypatch.setattr(_Renderer, "_start", start)
    model = template(CHATML + PROMPT, seconds=0.3)
    assert learned(explain(model, human_gpt("Hi", "Ho"))).endswith("[Ho<|im_end|>]\n") and stopped


def test_the_process_that_finds_the_ends_renders_too(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    init = worker_module.Worker.__init__
    monkeypatch.setattr(
        worker_module.Worker,
        "__init__",
        lambda worker, *given: (started.append(worker), init(worker, *given))[1],
    )
    model = template(CHATML + PROMPT)
    assert learned(explain(model, human_gpt("Hi", "Ho"))).endswith("[Ho<|im_end|>]\n") and len(started) == 1
    with pytest.raises(ValueError, match="no special token"):
        template("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert all(worker.process.poll() is not None for worker in started[1:])


BIG = [
    "{{ 'a' * 1000000000 }}",
    "{% for a in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
    "{% set n = namespace(x='aa') %}{% for a in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "{{ 'a'.center(2000000000) }}",
    "{{ '%2000000000d' % 1 }}",
]


def test_a_constant_that_cannot_be_written(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="does not compile"):
        template("{{ 10 ** 5000 }}" + CHATML)
    assert "Traceback" not in capfd.readouterr().err


LIMITS = r"writes more than|too much memory|refuses|ended its|does not compile|takes more than"


@pytest.mark.parametrize("payload", BIG)
def test_output_and_memory_are_limited(payload: str) -> None:
    with pytest.raises(ValueError, match=LIMITS):
        template(payload + CHATML)


def test_a_record_that_hangs_is_excluded_and_the_next_is_rendered() -> None:
    source = f"{{% if messages[0].content == 'hang' %}}{ENDLESS[0]}{{% endif %}}"
    model = template(source + CHATML + PROMPT, seconds=0.5)
    assert learned(explain(model, human_gpt("Hi", "Ho"))).endswith("[Ho<|im_end|>]\n")
    (hung,) = explain(model, human_gpt("hang", "Ho")).findings
    assert (hung.remark, hung.action) == ("template_refuses", "excluded") and "0.5 s" in hung.reason
    assert learned(explain(model, human_gpt("Hi", "Ho"))).endswith("[Ho<|im_end|>]\n")


def test_a_template_that_refuses_excludes_the_record() -> None:
    model = template(
        "{% if messages|length > 4 %}{{ raise_exception('too long') }}{% endif %}" + CHATML + PROMPT
    )
    seen = explain(model, human_gpt("a", "b", "c", "d", "e", "f"))
    assert seen.outcome == "excluded" and "too long" in seen.findings[0].reason


def test_generation_blocks() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}<|im_end|>"
        "{% endgeneration %}{{ '\\n' }}{% else %}U:{{ m.content }}\n{% endif %}{% endfor %}"
    )
    seen = explain(template(source), human_gpt("Hi", "Ho", "He", "Ha"))
    assert learned(seen) == "U:Hi\nA:[Ho<|im_end|>]\nU:He\nA:[Ha<|im_end|>]\n"
    last = explain(template(source), human_gpt("Hi", "Ho", "He", "Ha"), learn="last")
    assert learned(last) == "U:Hi\nA:Ho<|im_end|>\nU:He\nA:[Ha<|im_end|>]\n"


def test_generation_blocks_inside_each_other_are_refused() -> None:
    """Their marks would stay in the text."""
    inner = "{% generation %}<|im_end|>{% endgeneration %}"
    source = (
        "{% for m in messages %}{% if m.role != 'assistant' %}U:{{ m.content }}{% elif loop.last %}"
        "{{ m.content }}<|im_end|>{% else %}{% generation %}{{ m.content }}" + inner + "{% endgeneration %}"
        "{% endif %}{% endfor %}"
    )
    with pytest.raises(ValueError, match="a generation block inside another"):
        explain(template(source), human_gpt("Hi", "Ho", "He", "Ha"))


def test_what_a_template_may_not_write() -> None:
    when = "{% if messages[0].content == 'x' %}{{ "
    surrogate = template(when + "'\\ud800' }}{% endif %}" + CHATML + PROMPT)
    assert "lone surrogate" in explain(surrogate, human_gpt("x", "Ho")).findings[0].reason
    loud = template(when + "raise_exception('\x1b[2J' ~ 'a' * 999) }}{% endif %}" + CHATML + PROMPT)
    (refused,) = explain(loud, human_gpt("x", "Ho")).findings
    assert "\\x1b[2Jaaa" in refused.reason and len(refused.reason) < 500


# As reasoning models write it: the thoughts of earlier replies are taken out.
THINKING = (
    "{% for m in messages %}{% set text = m.content.split('</think>')[-1] if m.role == 'assistant' and "
    "not loop.last else m.content %}<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>\n{% endfor %}" + PROMPT
)


def test_rewritten_replies_fail_closed() -> None:
    plain = explain(template(THINKING), human_gpt("Hi", "Ho", "He", "Ha"))
    assert learned(plain).count("[") == 2
    thoughts = human_gpt("Hi", "<think>x</think>Ho", "He", "<think>y</think>Ha")
    whole = explain(template(THINKING), thoughts)  # one text; data that is labelled gets rows of its own
    assert whole.outcome == "excluded" and not whole.tokens
    reason = whole.findings[0].reason
    assert "rewritten" in reason and reason.index("<think>x") < reason.index("becomes")
    seen = explain(template(THINKING), thoughts, learn="last")
    assert learned(seen).endswith("Ho<|im_end|>\n<|im_start|>user\nHe<|im_end|>\n<|im_start|>assistant\n"
                                  "[<think>y</think>Ha<|im_end|>]\n")  # fmt: skip


def test_a_reply_that_is_written_otherwise_is_told() -> None:
    """As templates that leave out the thoughts of every reply, the learned one too."""
    source = THINKING.replace(" and not loop.last", "").replace("m.role == 'assistant'", "true")
    seen = explain(template(source), human_gpt("Hi", "<think>x</think>Ho"))
    assert learned(seen).endswith("[Ho<|im_end|>]\n")
    (told,) = seen.findings
    assert (told.remark, told.action, told.message) == ("template_rewrites", "salvaged", 1)
    assert explain(template(source), human_gpt("Hi", "Ho")).findings == []


def test_a_template_that_ignores_the_prompt_is_told_what_to_add() -> None:
    native, settings = llama_with_specials(), LabelSettings(mask_policy="spans")
    tokenizer = named(native, CHATML)
    with pytest.raises(ValueError, match="ignores add_generation_prompt") as raised:
        make_labeller(native, 512, 0, settings, tokenizer=tokenizer, self_test=True)
    assert "\n" not in str(raised.value)
    (added,) = re.findall("put (.*) at the end", str(raised.value))
    tokenizer.chat_template += added
    make_labeller(native, 512, 0, settings, tokenizer=tokenizer, self_test=True)


@pytest.mark.parametrize(
    ("source", "line"), [("a\n{% if %}", 2), ("{{ a }\n", 1), ("a\n\n{% for m in x %}", 3)]
)
def test_a_syntax_error_has_its_line(source: str, line: int) -> None:
    with pytest.raises(ValueError, match=f"does not compile: line {line}: "):
        template(source)


def test_data_is_plain_text_or_the_record_is_excluded() -> None:
    seen = explain(template(CHATML + PROMPT), human_gpt("x<|im_end|>y", "Ho"))
    native = llama_with_specials()
    stop = native.find_token("<|im_end|>")
    assert sum(token == stop for token, *_ in seen.tokens) == 2
    upper = CHATML.replace("m.content", "m.content|upper") + PROMPT
    assert learned(explain(template(upper), human_gpt("Hi", "Ho"))).endswith("[HO<|im_end|>]\n")
    mixed = explain(template(upper), human_gpt("x</s>y", "Ho"))
    assert (mixed.outcome, mixed.findings[0].remark) == ("excluded", "embedded_special")


def test_stripped_texts_and_tools() -> None:
    source = CHATML.replace("m.content", "m.content|trim") + PROMPT
    seen = explain(template(source), human_gpt(" Hi </s>\n", "\nHo "))
    assert learned(seen).endswith("user\nHi </s><|im_end|>\n<|im_start|>assistant\n[Ho<|im_end|>]\n")
    assert [token for token, *_ in seen.tokens].count(2) == 0
    messages = [
        *human_gpt("Hi", "call"),
        {"from": "tool", "value": "42"},
        {"from": "gpt", "value": "It is 42."},
    ]
    tools = explain(template(CHATML + PROMPT), messages)
    assert "<|im_start|>tool\n42<|im_end|>" in tools.text and learned(tools).count("[") == 2


def test_only_what_templates_may_ask_for() -> None:
    source = "{{ strftime_now('%Y') }}{{ messages[0]|tojson }}" + CHATML + PROMPT
    model = template(source)
    seen = explain(model, human_gpt('é"<', "Ho"))
    assert seen.text.startswith(model.date[:4] + '{"role": "user", "content": "é\\"<"}')
    assert (
        explain(template("{{ strftime_now('%H%M%S') }}" + CHATML), human_gpt("a", "b")).text[:6] == "000000"
    )
    loop = "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}"
    assert "Ho" in explain(template(loop + CHATML + PROMPT), human_gpt("Hi", "Ho")).text


def test_many_at_once_are_those_one_by_one() -> None:
    records = [
        {"conversations": human_gpt(*"abcdef"[: 2 * (1 + i % 3)], f"q{i}", f"a{i}")} for i in range(300)
    ]
    options = _C.LabelOptions(mask_policy="spans", chat_template="model", max_length=512)
    model = template(CHATML + PROMPT)
    labeller = _C.Labeller(llama_with_specials(), options, model)
    dataset = _C.label_text(json.dumps(records), labeller).dataset
    named_one = _C.LabelOptions(mask_policy="spans", chat_template="chatml", max_length=512)
    judge = _C.label_text(json.dumps(records), _C.Labeller(llama_with_specials(), named_one)).dataset
    assert len(dataset) == len(judge) == 300
    for row in range(300):
        assert dataset.ids(row).tolist() == judge.ids(row).tolist()
        assert dataset.learned(row) == judge.learned(row)
    model.close()


def test_where_templates_are_found(tmp_path: Path) -> None:
    assert read_chat_template(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "one"}))
    assert read_chat_template(tmp_path) == "one"
    with pytest.raises(ValueError, match="the model has default"):
        read_chat_template(tmp_path, "rag")
    extra = tmp_path / "additional_chat_templates"
    extra.mkdir()
    (extra / "tools.jinja").write_text("five")
    assert read_chat_template(tmp_path, "tools") == "five"
    items = [{"name": "default", "template": "two"}, {"name": "rag", "template": "three"}]
    config.write_text(json.dumps({"chat_template": items}))
    assert (read_chat_template(tmp_path), read_chat_template(tmp_path, "rag")) == ("two", "three")
    (tmp_path / "chat_template.jinja").write_text("four")
    assert read_chat_template(tmp_path) == "four"
    config.write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        read_chat_template(tmp_path, "rag")
