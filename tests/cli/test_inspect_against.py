"""`fastsft inspect --against`: another framework's labels next to ours, from its own process."""

from __future__ import annotations

import json
import random
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C
from fastsft.cli import main as cli
from fastsft.data.chat.labelling import LabelSettings
from fastsft.inspection.against import comparison, request
from fastsft.inspection.against.alignment import equal_runs, settled
from fastsft.inspection.against.comparison import Against, Comparison
from fastsft.inspection.against.differences import Kind
from fastsft.inspection.against.frameworks import FRAMEWORKS
from fastsft.inspection.against.reasons import why
from fastsft.inspection.against.records import record_for_others
from fastsft.inspection.inspect import prepare
from fastsft.tokenizer import Tokenizer
from framework_pythons import python_of
from published_models import write_published
from published_templates import write_model
from template_conversations import CONVERSATIONS, TOOLS

PLAIN = CONVERSATIONS["system_two"][0]
CALLS = CONVERSATIONS["call"][0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_published(tmp_path_factory.mktemp("model") / "qwen3", "qwen3")


def adapter(path: Path, body: str) -> Path:
    """The program of a framework whose `change(ids, labels, tokens)` makes rows out of ours."""
    head = "import json\n\ndef encode(request, records):\n"
    path.write_text(head + textwrap.indent(textwrap.dedent(body), "    "), "utf-8")
    return path


def asked(folder: Path, body: str, records: list[Any] | None = None, **more: Any) -> request.Answer:
    program = adapter(folder / "of_fake.py", body)
    made = request.Request(FRAMEWORKS["trl"], program, str(folder), 64, **more)
    return made.run([{"messages": []}] if records is None else records)


def test_the_answer_of_a_framework(tmp_path: Path) -> None:
    body = """
        yield {"versions": {"fake": "7"}, "settings": {**request["settings"], "limit": request["max_length"]}}
        yield {"index": 0, "rows": [[[1, 2], [-100, 2]]]}
        yield {"index": 1, "dropped": records[1]["messages"]}
    """
    seen = asked(tmp_path, body, [{}, {"messages": "too odd"}], settings={"a": True})
    assert seen.versions == {"fake": "7"} and seen.settings == {"a": True, "limit": 64}
    assert [each.rows for each in seen.records] == [[([1, 2], [-100, 2])], []]
    assert seen.records[1].dropped == "too odd"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("import no_such_framework\nyield", "no module 'no_such_framework'.*pip install trl==1.16.0"),
        (
            "raise AttributeError('encode is gone')\nyield",
            r"as of 1.16.0\) fails in .*encode is gone.*of_fake.py",
        ),
        ("import os\nos._exit(3)\nyield", "exit status 3"),
        ("print('last words', flush=True)\nimport os\nos.abort()\nyield", "signal 6: .*last words"),
        ("yield {'versions': {}, 'settings': {}}", "expected 1 answers, got 0"),
        ("x = bytearray(1 << 40)\nyield", "MemoryError"),
    ],
)
def test_a_framework_that_fails(body: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=expected):
        asked(tmp_path, body)


def test_a_framework_that_takes_too_long(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"more than 0.5 s.*--against_seconds"):
        asked(tmp_path, "import time\ntime.sleep(60)\nyield", seconds=0.5)


def test_a_python_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--against_python .*No such file"):
        asked(tmp_path, "yield", python=str(tmp_path / "python"))


def test_the_process_of_another_environment_sees_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "ours")
    body = """
        import os
        yield {"versions": {}, "settings": dict(os.environ)}
        yield {"index": 0, "dropped": ""}
    """
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    assert asked(tmp_path, body).settings["PYTHONPATH"] == "ours"
    theirs = asked(tmp_path, body, python=str(link)).settings
    assert (
        "PYTHONPATH" not in theirs
        and theirs["HF_HUB_OFFLINE"] == "1"
        and theirs["CUDA_VISIBLE_DEVICES"] == ""
    )


@pytest.mark.parametrize("size", [12, 400, 3000])
def test_equal_runs_are_equal_and_in_order(size: int) -> None:
    drawn = random.Random(size)
    first = [drawn.randrange(40) for _ in range(size)]
    second = list(first)
    for _ in range(size // 20 + 1):  # inserted, removed and changed
        at = drawn.randrange(len(second))
        second[at : at + drawn.randrange(3)] = [drawn.randrange(40) for _ in range(drawn.randrange(3))]
    runs = equal_runs(first, second)
    at, to, total = 0, 0, 0
    for i, j, count in runs:
        assert i >= at and j >= to and first[i : i + count] == second[j : j + count]
        at, to, total = i + count, j + count, total + count
    assert total >= size * 0.8 and equal_runs(first, first) == [(0, 0, size)]


def test_texts_of_one_row_move_to_where_labels_agree() -> None:
    """The text of one row is 7 5 or 5 7; without expected runs each place is as good, and it stays."""
    for first, second, labels, expected in (
        ((1, 7, 9), (1, 7, 5, 7, 9), ((0, 0, 1), (0, 0, 1, 1, 1)), [(0, 0, 2), (2, 4, 1)]),
        ((1, 7, 9), (1, 7, 5, 7, 9), ((0, 1, 1), (0, 0, 0, 1, 1)), [(0, 0, 1), (1, 3, 2)]),
        ((1, 7, 5, 7, 9), (1, 7, 9), ((0, 0, 1, 1, 1), (0, 0, 1)), [(0, 0, 2), (4, 2, 1)]),
        ((1, 7, 9), (1, 7, 5, 7, 9), ((0, 0, 0), (0, 0, 0, 0, 0)), []),
    ):
        bits = [bool(label) for label in labels[0]], [bool(label) for label in labels[1]]
        for runs in (
            [(0, 0, 2), (len(first) - 1, len(second) - 1, 1)],
            [(0, 0, 1), (len(first) - 2, len(second) - 2, 2)],
        ):
            assert settled(runs, first, second, bits) == (expected or runs)


def chosen(model: Path, folder: Path, *records: Any, **settings: Any) -> tuple[Any, _C.Survey]:
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    given = LabelSettings(**{"mask_policy": "spans", "template": "model", **settings})
    setup = prepare(str(model), given, 1024, str(data))
    return setup, setup.read(str(data), _C.SurveyChoice(count=len(records), whole=True))[1]


FORMS: dict[str, Any] = {
    "messages": {"messages": CALLS, "tools": TOOLS},
    "sharegpt": {
        "conversations": [
            {"from": "human", "value": "How is Italy?"},
            {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Rome"}}'},
            {"from": "observation", "value": "sunny 21"},
            {"from": "gpt", "value": "It shines."},
        ],
        "tools": json.dumps([tool["function"] for tool in TOOLS]),
    },
    "alpaca": {"instruction": "Hi", "input": "there", "output": "Ho", "system": "Be kind."},
    "marked": {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Ho", "train": False},
        ]
    },
}


def test_records_of_every_form_reach_the_other_framework(model: Path, tmp_path: Path) -> None:
    """As messages with calls and tools, whatever the file has."""
    made = {}
    for name, record in FORMS.items():
        _, seen = chosen(model, tmp_path, record)
        made[name], reason = record_for_others(seen.chosen[0].json)
        assert reason == ""
    calls = made["messages"]["messages"][1]["tool_calls"]
    assert calls == CALLS[1]["tool_calls"] and made["messages"]["tools"] == TOOLS
    bare = made["sharegpt"]["messages"]
    assert [message["role"] for message in bare] == ["user", "assistant", "tool", "assistant"]
    assert bare[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
    assert made["sharegpt"]["tools"] == TOOLS
    assert [m["content"] for m in made["alpaca"]["messages"]] == ["Be kind.", "Hi\nthere", "Ho"]
    assert made["marked"]["messages"][1]["train"] is False


def test_variables_of_the_template_reach_the_other_framework() -> None:
    given = {"chat_template_kwargs": {"a": 1, "enable_thinking": True}, "enable_thinking": False}
    record = {"messages": [{"role": "user", "content": "Hi"}], "variables": given}
    made, _ = record_for_others(json.dumps(record).encode())
    assert made is not None and made["chat_template_kwargs"] == {"a": 1, "enable_thinking": False}


def test_records_that_are_no_conversations_are_not_sent(model: Path, tmp_path: Path) -> None:
    odd = {"messages": [3, {"role": "user", "content": "x"}]}
    _, seen = chosen(model, tmp_path, {"messages": PLAIN}, odd, {"messages": []}, {"messages": 7})
    reasons = [record_for_others(surveyed.json)[1] for surveyed in seen.chosen]
    assert reasons == ["", "a message is no object", "no messages", '"messages" is no list of messages']


FAKE = """import json

def encode(request, records):
    yield {"versions": {"fake": "1"}, "settings": {}}
    for number, rows in enumerate(json.load(open(ROWS))):
        made = []
        for ids, learned in rows:
            CHANGE
            labels = [i if bit is True else bit if bit else -100 for i, bit in zip(ids, learned)]
            made.append([ids, labels])
        yield {"index": number, "rows": made} if made else {"index": number, "dropped": "as I like"}
"""


def against(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, change: str, *records: Any, **settings: Any
) -> Comparison:
    """Ours next to a framework that makes our rows, changed. change: of `ids` and `learned`, which may have
    another target's id in place of True."""
    setup, seen = chosen(model, folder, *records, **settings)
    rows = [
        [
            [[t[0] for t in row.tokens], [bool(t[3]) for t in row.tokens]]
            for row in surveyed.rows
            if row.tokens
        ]
        for surveyed in seen.chosen
    ]
    (folder / "rows.json").write_text(json.dumps(rows), "utf-8")
    program = folder / "of_fake.py"
    program.write_text(
        FAKE.replace("ROWS", repr(str(folder / "rows.json"))).replace("CHANGE", change), "utf-8"
    )
    monkeypatch.setattr(comparison, "adapter_of", lambda name: program)
    return comparison.compare(setup, "data", seen, Against("trl"))


CHANGES: dict[str, dict[Kind, tuple[int, int, int]]] = {
    "pass": {},
    "learned[-1] = True": {Kind.END_MARK: (1, 0, 1)},
    "learned[len(ids) - 2] = False": {Kind.END_MARK: (1, 1, 0)},
    "learned[0] = ids[1]": {Kind.TARGET: (1, 0, 1)},
    "learned[len(ids) - 2] = ids[1]": {Kind.TARGET: (1, 1, 1)},
    "learned[learned.index(True)] = False": {Kind.THOUGHTS: (1, 1, 0)},
    "learned[0:3] = [True] * 3": {Kind.PROMPT_LEARNED: (1, 0, 3)},
    "learned[:] = [False] * len(ids)": {Kind.THOUGHTS: (1, 8, 0)},
    "ids[0:0] = ids[:5]; learned[0:0] = learned[:5]": {Kind.DEFAULT_SYSTEM: (1, 0, 0)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_kinds_of_differences(
    change: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a record of one turn with Qwen3's template, which learns empty thoughts, too."""
    seen = against(model, tmp_path, monkeypatch, change, {"messages": CONVERSATIONS["one"][0]})
    found = {
        kind: (count["records"], count.get("ours", 0), count.get("theirs", 0))
        for kind, count in seen.counts().items()
    }
    assert found == CHANGES[change] and seen.is_same == (not found)


def test_the_lead_of_a_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes prompts in another way than fastsft learns the first tokens of a reply as prompt."""
    model = write_model(tmp_path / "plain", "qwen2.5")
    change = "learned[learned.index(True)] = False"
    seen = against(model, tmp_path, monkeypatch, change, {"messages": CONVERSATIONS["one"][0]})
    assert seen.counts() == {Kind.LEAD: {"tokens": 1, "ours": 1, "theirs": 0, "records": 1}}
    (difference,) = seen.records[0].differences
    assert why(difference) == "the model generates it after the prompt for a reply"


def test_a_record_that_one_leaves_out(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unanswered = {"messages": [{"role": "user", "content": "Hi"}]}
    seen = against(model, tmp_path, monkeypatch, "pass", {"messages": PLAIN}, unanswered)
    assert seen.is_same and seen.records[1].ours is None and seen.records[1].our_reason
    seen = against(model, tmp_path, monkeypatch, "made = []; break", {"messages": PLAIN})
    assert list(seen.counts()) == [Kind.DROPPED] and seen.records[0].their_reason == "as I like"


def test_a_reply_that_a_mark_leaves_out(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marked = [dict(message) for message in CONVERSATIONS["two"][0]]
    marked[3]["train"] = False
    change = "learned[len(ids) - 5 : len(ids) - 1] = [True] * 4"
    seen = against(model, tmp_path, monkeypatch, change, {"messages": marked}, template="chatml")
    assert [(each.kind, each.text) for each in seen.records[0].differences] == [
        (Kind.REPLY, "Tock.<|im_end|>")
    ]


def test_rows_of_single_replies_are_joined(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen3 writes the last reply with thoughts: each reply has a row, and each is learned once."""
    messages = CONVERSATIONS["think_two"][0]
    seen = against(model, tmp_path, monkeypatch, "pass", {"messages": messages})
    (record,) = seen.records
    assert seen.is_same and record.ours is not None and record.ours.num_rows == 2
    text = seen.texts.of([i for i, bit in zip(record.ours.ids, record.ours.learned, strict=True) if bit])
    first, second = "<think>\nA game.\n</think>\n\nPong.", "<think>\nA clock.\n</think>\n\nTock."
    assert text == f"{first}<|im_end|>{second}<|im_end|>"


def test_the_command(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1 at a difference and 0 without; text and page have both labels."""
    against(model, tmp_path, monkeypatch, "learned[-1] = True", {"id": "first", "messages": PLAIN})
    words = ["inspect", "--model", str(model), "--template", "model", "--data", str(tmp_path / "data.jsonl")]
    more = ["--against", "trl", "--model_max_length", "512", "--html", str(tmp_path / "page.html")]
    assert cli.main([*words, *more]) == 1
    said = capsys.readouterr().out
    assert "end mark" in said and "TRL learned" in said and "0 the same, 1 different" in said
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "fastsft against TRL" in page and "http" not in page.replace("http://www.w3.org", "")
    assert cli.main([*words, *more, "--tokens"]) == 1
    assert "<|im_end|>" in capsys.readouterr().out
    against(model, tmp_path, monkeypatch, "pass", {"id": "first", "messages": PLAIN})
    assert cli.main([*words, "--against", "trl"]) == 0
    assert "1 the same, 0 different" in capsys.readouterr().out


def test_ours_with_other_flags(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen(model, tmp_path, {"messages": PLAIN})
    words = ["inspect", "--model", str(model), "--template", "model", "--data", str(tmp_path / "data.jsonl")]
    assert cli.main([*words, "--against", "fastsft", "--against_setting", "train_turns=each"]) == 0
    assert cli.main([*words, "--against", "fastsft", "--against_setting", "template=chatml"]) == 1
    assert "thoughts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--against_setting a=1", "belongs to --against"),
        ("--against trl --against_setting a", "expected NAME=VALUE"),
        ("--against trl --against_seconds 0", "expected more than 0"),
        ("--against fastsft", "name the other flags"),
        ("--against fastsft --only dropped --against_setting a=1", "labelled twice"),
        ("--against fastsft --against_setting a=1", "expected one of .*mask_policy"),
    ],
)
def test_wrong_flags(
    flags: str, expected: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen(model, tmp_path, {"messages": PLAIN})
    words = ["inspect", "--model", str(model), "--template", "model", "--data", str(tmp_path / "data.jsonl")]
    try:
        status = cli.main([*words, *flags.split()])
    except SystemExit as exit_:
        status = exit_.code  # type: ignore[assignment]
    assert status == 2
    found = " ".join(capsys.readouterr().err.split())
    assert re.search(expected, found)


SETTINGS = {"llamafactory": {"template": "qwen3"}, "swift": {"model_type": "qwen3", "template_type": "qwen3"}}
# Kinds of difference of Qwen3's plain turn of one reply, as their labels are known to be.
KNOWN = {
    "trl": {Kind.END_MARK: (0, 1)},
    "llamafactory": {Kind.END_MARK: (0, 1)},
    "swift": {Kind.END_MARK: (0, 1)},
    "axolotl": {Kind.THOUGHTS: (4, 0)},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", KNOWN)
def test_the_frameworks_themselves(name: str, model: Path, tmp_path: Path) -> None:
    setup, seen = chosen(model, tmp_path, {"messages": CONVERSATIONS["one"][0]})
    found = comparison.compare(setup, "data", seen, Against(name, SETTINGS.get(name, {}), python_of(name)))
    counts = {kind: (count.get("ours", 0), count.get("theirs", 0)) for kind, count in found.counts().items()}
    assert counts == KNOWN[name] and found.versions


def test_a_reply_whose_thoughts_are_not_in_the_other_row(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen3's empty block is left out there, and nothing of the reply is learned."""
    change = (
        "at = learned.index(True); del ids[at:at + 4], learned[at:at + 4]; "
        "learned[at:] = [False] * (len(ids) - at)"
    )
    seen = against(model, tmp_path, monkeypatch, change, {"messages": CONVERSATIONS["one"][0]})
    assert [(each.kind, each.text) for each in seen.records[0].differences] == [
        (Kind.THOUGHTS, "<think>\n\n</think>\n\n"),
        (Kind.REPLY, "Pong.<|im_end|>"),
    ]


def test_a_turn_that_is_written_otherwise_is_no_system_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its opening is none, nor what follows a message's first line."""
    model = write_model(tmp_path / "plain", "qwen2.5")
    encode = Tokenizer.from_pretrained(model).native.encode
    asked = {"role": "user", "content": "Two\nlines."}
    record = {"messages": [asked, {"role": "assistant", "content": "Yes."}]}
    head, line, more = (len(encode(text)) for text in (b"user\n", b"Two", b"zz"))
    cut = f"del ids[:{head + 1}], learned[:{head + 1}]"
    inside = (
        f"ids[{head + line + 1}:0] = {list(encode(b'zz'))}; learned[{head + line + 1}:0] = [False] * {more}"
    )
    for change, text in ((cut, "<|im_start|>user\n"), (inside, "zz")):
        seen = against(model, tmp_path, monkeypatch, change, record, template="chatml")
        found = [(each.kind, each.text) for each in seen.records[0].differences]
        assert found == [(Kind.OTHER, text)]
