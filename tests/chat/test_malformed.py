"""Each malformed record has the outcome that docs/data_faults.md says; the counts of a file add up."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from chat_tokenizers import LEGACY
from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from golden_text import GOLDEN
from malformed import KINDS, record_text, table

LENGTH = 80
PAGE = Path(__file__).parents[2] / "docs" / "data_faults.md"


NATIVE = _C.load_tokenizer(str(GOLDEN / "tokenizers" / LEGACY))[0]


@cache
def labeller(policy: str, on_bad_sample: str | None = None) -> Any:
    settings = LabelSettings(mask_policy=policy, template="vicuna_v1.1", on_bad_sample=on_bad_sample)
    return make_labeller(NATIVE, LENGTH, 0, settings)


def outcome(seen: Any) -> str:
    if seen.faults:
        return f"stops: {seen.faults[0].remark}"
    if not seen.findings:
        return "kept"
    remarks = ", ".join(sorted({finding.remark for finding in seen.findings}, key=order))
    return f"{seen.outcome}: {remarks}"


def order(remark: str) -> int:
    names = ["starts_with_assistant", "ends_with_user", "broken_alternation"]
    return names.index(remark) if remark in names else len(names)


@pytest.mark.parametrize(("kind", "record", "fastchat", "spans"), KINDS, ids=[kind for kind, *_ in KINDS])
def test_outcomes(kind: str, record: Any, fastchat: str, spans: str) -> None:
    for policy, expected in (("fastchat", fastchat), ("spans", spans)):
        assert outcome(_C.explain_record(record_text(record), labeller(policy))) == expected
    skipped = outcome(_C.explain_record(record_text(record), labeller("fastchat", "skip")))
    assert skipped == fastchat.replace("stops", "excluded")
    strict = _C.explain_record(record_text(record), labeller("spans", "error"))
    stops = any(f.remark in FATAL for f in _C.explain_record(record_text(record), labeller("spans")).findings)
    assert bool(strict.faults) == stops


FATAL = {
    "not_an_object", "no_conversations", "empty_conversation", "bad_message", "unknown_role", "not_text",
    "broken_alternation", "lone_surrogate",
}  # fmt: skip


@pytest.mark.parametrize("policy", ["fastchat", "spans"])
def test_counts_add_up(policy: str) -> None:
    """A file with one record of each kind gives the counts of the table."""
    text = f"[{','.join(record_text(record) for _, record, *_ in KINDS)}]"
    labelled = _C.label_text(text, labeller(policy, "skip"))
    report = json.loads(labelled.report.to_json())
    expected = [row[2 if policy == "fastchat" else 3].replace("stops", "excluded") for row in KINDS]
    words = [word.split(":")[0] for word in expected]
    assert report["records"] == len(KINDS)
    assert report["excluded"] == words.count("excluded")
    assert report["dropped"] == words.count("dropped")
    assert report["truncated"] == words.count("truncated")
    assert report["salvaged"] == words.count("salvaged")
    assert report["without_labels"] == sum(map(words.count, ("excluded", "dropped", "unlabelled")))
    assert report["kept"] + report["without_labels"] == report["records"]
    assert len(labelled.dataset) == report["records"] - report["excluded"]
    for remark in report["reasons"]:
        assert report["reasons"][remark]["count"] == sum(remark in word for word in expected), remark
    again = _C.DataReport.from_json(labelled.report.to_json())
    assert again.to_json() == labelled.report.to_json() and again.summary() == labelled.report.summary()


def test_repair_joins_and_error_stops() -> None:
    record = {"conversations": [{"from": "human", "value": "a"}, {"from": "human", "value": "b"},
                                {"from": "gpt", "value": "c"}, {"from": "gpt", "value": "d"}]}  # fmt: skip
    seen = _C.explain_record(json.dumps(record), labeller("spans", "repair"))
    assert seen.text.endswith("USER: a\n\nb ASSISTANT: c\n\nd</s>")
    assert [finding.remark for finding in seen.findings] == ["joined_messages"] * 2
    with pytest.raises(ValueError, match="repair needs --mask_policy spans"):
        labeller("fastchat", "repair")


def test_repair_of_many_messages_keeps_its_memory_small() -> None:
    """2,500 messages of 200 bytes: a copy for each join would take 600 MB."""
    messages = [{"from": "human", "value": f"{i:04}" + "x" * 196} for i in range(2500)]
    text = json.dumps({"conversations": [*messages, {"from": "gpt", "value": "y"}]})
    chosen = labeller("spans", "repair")
    Path("/proc/self/clear_refs").write_text("5")  # the highest resident size begins anew
    before = resident_peak()
    seen = _C.explain_record(text, chosen)
    assert resident_peak() - before < 200_000
    assert "\n\n".join(message["value"] for message in messages) in seen.text


def resident_peak() -> int:
    """In KiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def test_train_flags_and_turns() -> None:
    messages = [
        {"role": role, "content": f"{role[0]}{i}"} for i in range(3) for role in ("user", "assistant")
    ]

    def learned(turns: str, **record: Any) -> list[str]:
        settings = LabelSettings(mask_policy="spans", template="vicuna", train_turns=turns)
        text = json.dumps({"messages": messages, **record})
        seen = _C.explain_record(text, make_labeller(NATIVE, 512, -1, settings))
        return [reply for reply in ("a0", "a1", "a2") if any(
            is_learned and seen.text_bytes[begin:end].decode().strip() == reply[0] and
            seen.text_bytes[begin:].decode().strip().startswith(reply)
            for _, begin, end, is_learned in seen.tokens)]  # fmt: skip

    assert learned("all") == ["a0", "a1", "a2"]
    assert learned("last") == ["a2"]
    messages[1]["train"] = False
    assert learned("all") == ["a1", "a2"]
    messages[3]["train"] = True
    assert learned("all", train=False) == ["a1"]
    messages[3]["train"] = None  # a table has it where a message says nothing
    assert learned("all", train=False) == []


def test_role_map() -> None:
    record = json.dumps({"conversations": [{"from": "alice", "value": "Hi"}, {"from": "bob", "value": "Ho"}]})
    for policy in ("fastchat", "spans"):
        settings = LabelSettings(
            mask_policy=policy, template="vicuna", role_map={"alice": "user", "bob": "assistant"}
        )
        seen = _C.explain_record(record, make_labeller(NATIVE, 512, 0, settings))
        assert seen.text.endswith("USER: Hi ASSISTANT: Ho</s>") and not seen.faults
    with pytest.raises(ValueError, match='"judge" for "x" is no role'):
        make_labeller(NATIVE, 512, 0, LabelSettings(role_map={"x": "judge"}))


def test_the_page_is_current() -> None:
    stale = "docs/data_faults.md is stale: python tests/support/malformed.py"
    assert PAGE.read_text("utf-8") == table(), stale
