"""Models with a template for chats with tools next to the default one, as Hermes and Command R have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from data_formats import labelled, write_records
from fastsft import inspect
from fastsft.data.chat.labelling import LabelSettings, describe, make_labeller
from fastsft.data.chat.prompts import Prompts
from fastsft.data.chat.template_saving import trained_source
from fastsft.data.conversation_labels import label_conversation_file, may_have_tools
from fastsft.data.label_files import FileOptions
from fastsft.data.labelled_rows import LabelledRows
from fastsft.data.token_rows import TokenRows
from fastsft.sources.data_files import DataFile
from fastsft.tokenizer import Tokenizer
from published_models import CHATML, TEMPLATES, write_tokenizer

PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
DEFAULT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + PROMPT
# Without tools it fails, as Command R's.
TOOL_USE = (
    "<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}" + PROMPT
)
TOOLS = [{"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {}}}]
CALL = {"type": "function", "function": {"name": "now", "arguments": {}}}
ASKED = [{"role": "user", "content": "When?"}]
CALLING = [
    *ASKED,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "9:00"},
    {"role": "assistant", "content": "At nine."},
]
PLAIN = [*ASKED, {"role": "assistant", "content": "Now."}]
RECORDS: list[dict[str, Any]] = [
    {"messages": CALLING, "tools": TOOLS},
    {"messages": PLAIN},
    {"messages": PLAIN, "tools": TOOLS},
    {"messages": PLAIN, "tools": []},
]


def write_model(folder: Path, form: str = "config", tool_use: str = TOOL_USE, default: str = DEFAULT) -> Path:
    """form: both in tokenizer_config.json, or a file each, as newer releases of transformers save them."""
    write_tokenizer(folder, default, CHATML, {"eos_token": "<|im_end|>"})
    if form == "files":
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(tool_use)
        return folder
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    named = {"default": default, "tool_use": tool_use}
    config["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


class Seen:
    """Records as a file of them is labelled."""

    def __init__(self, model: Path, folder: Path, *records: Any, **settings: Any) -> None:
        self.tokenizer = Tokenizer.from_pretrained(model, model_max_length=512)
        native = self.tokenizer.native
        self.settings = LabelSettings(mask_policy="spans", **settings)
        using = make_labeller(native, 512, 0, self.settings, tokenizer=self.tokenizer, self_test=True)
        seen = labelled(write_records(folder / "d.json", list(records)), using)
        self.labelling, self.report, rows = describe(using), seen.report, range(len(seen.dataset))
        self.ids = [seen.dataset.ids(i).tolist() for i in rows]
        self.learned = [native.decode(self.ids[i][a:b]) for i in rows for a, b in seen.dataset.learned(i)]


@pytest.mark.parametrize("form", ["config", "files"])
def test_each_record_is_what_transformers_writes(form: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", form)
    seen, theirs = Seen(model, tmp_path, *RECORDS), AutoTokenizer.from_pretrained(model)
    wanted = [theirs.apply_chat_template(r["messages"], tools=r.get("tools") or None) for r in RECORDS]
    assert seen.ids == wanted and wanted[1] != wanted[2]
    assert seen.learned[0].startswith('<tool_call>{"name": "now"') and seen.report.num_excluded == 0
    assert seen.report.formats[0].unused == []
    # The saved model keeps both, and is asked by the default one.
    assert trained_source(seen.tokenizer, seen.settings, seen.labelling["template"]) == DEFAULT
    prompt = theirs.apply_chat_template(ASKED, add_generation_prompt=True)
    assert Prompts(seen.tokenizer).ids(ASKED) == prompt


def test_calls_without_tools(tmp_path: Path) -> None:
    """Transformers takes the default template, which writes no calls: learned would be an empty reply."""
    seen = Seen(write_model(tmp_path / "m"), tmp_path, {"messages": CALLING}, *RECORDS)
    reason = str(seen.report.entries["template_refuses"].reason)
    assert seen.report.num_excluded == 1 and "--chat_template_name tool_use takes" in reason
    forgiving = write_model(tmp_path / "n", tool_use=TOOL_USE.replace("in tools %}", "in tools or [] %}"))
    named = Seen(forgiving, tmp_path, {"messages": CALLING}, chat_template_name="tool_use")
    assert named.learned[0].startswith("<tool_call>")


def test_one_that_is_named_is_taken_for_all(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m")
    seen = Seen(model, tmp_path, *RECORDS[1:3], chat_template_name="default")
    theirs = AutoTokenizer.from_pretrained(model)
    assert seen.ids == [theirs.apply_chat_template(PLAIN)] * 2


@pytest.mark.parametrize(
    ("tool_use", "problem"),
    [
        (
            TOOL_USE.replace("<|im_end|>\n{% endfor %}{% if", "<|im_start|>{% endfor %}{% if"),
            "it ends replies",
        ),
        (TOOL_USE.replace("{{ tool | tojson }}", "x"), "it writes no tools"),
        ("{% if %}", "does not compile"),
    ],
)
def test_one_that_cannot_be_trained_with_the_default_one(
    tool_use: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "m", tool_use=tool_use)
    seen = Seen(model, tmp_path, RECORDS[1])
    said = " ".join(capsys.readouterr().out.split())
    assert "tool_use is not taken for records with tools" in said and problem in said
    assert seen.learned == ["Now.<|im_end|>"]


PUBLISHED = (TEMPLATES / "chatml.jinja").read_text("utf-8")
# As a reply with thoughts stands in the last place, and without them in earlier ones.
REWRITING = TOOL_USE.replace(
    "{{ m.content }}", "{{ m.content if loop.last else m.content.split('</think>')[-1] }}"
)


def rows_of(model: Path, folder: Path, *records: Any) -> LabelledRows:
    """As a training labels a file."""
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=512)
    path = write_records(folder / "rows.json", list(records))
    options = FileOptions(str(folder / "cache"), show_progress=False)
    return label_conversation_file(str(path), tokenizer, LabelSettings(mask_policy="spans"), options)


@pytest.mark.covering
@pytest.mark.parametrize("plain", [RECORDS[1:2], RECORDS[1::2], [{"messages": PLAIN, "tools": None}]])
@pytest.mark.parametrize("tool_use", [TOOL_USE, REWRITING])
def test_without_tools_it_changes_nothing(tool_use: str, plain: list[Any], tmp_path: Path) -> None:
    """The published default template is rendered natively, and a run begun without tool_use goes on."""
    alone = write_tokenizer(tmp_path / "alone", PUBLISHED, CHATML, {"eos_token": "<|im_end|>"})
    both = write_model(tmp_path / "both", tool_use=tool_use, default=PUBLISHED)
    one, other = (rows_of(model, tmp_path, *plain) for model in (alone, both))
    assert other.labelling == one.labelling and other.labelling["template"] == "chatml"
    checksums = [TokenRows(each.native, 512).checksum() for each in (one, other)]
    assert checksums[0] == checksums[1]
    seen = inspect(both, tmp_path / "rows.json", mask_policy="spans")
    assert seen.labelling["template"] == "chatml"


def test_with_tools_it_writes_their_records(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", default=PUBLISHED)
    rows = rows_of(model, tmp_path, *RECORDS)
    theirs = AutoTokenizer.from_pretrained(model)
    wanted = [theirs.apply_chat_template(r["messages"], tools=r.get("tools") or None) for r in RECORDS]
    assert rows.labelling["template"] == "model" and rows.report.num_excluded == 0
    assert [rows.native.ids(i).tolist() for i in range(len(rows.native))] == wanted


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ('{"tools": [{"name": "f"}]}', True),
        ('{"tools" :\n "[{}]"}', True),
        ('{"tools": []}{"tools": [ ]}{"tools": null}{"tools": ""}{"tools": "[]"}{"tools": " null "}', False),
        ('{"content": "{\\"tools\\": [1]}"}', False),
        (" " * ((1 << 20) - 12) + '{"tools": "null"}', False),
        (" " * ((1 << 20) - 12) + '{"tools": "[{}]"}', True),
    ],
)
def test_files_with_tools(text: str, has: bool, tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text(text)
    assert may_have_tools([DataFile(str(tmp_path / "d.json"))]) is has
