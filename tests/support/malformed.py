"""Fifty kinds of malformed record (docs/spec/fastchat_labels.md, section 6.4), and what becomes of them.

A row: kind, the record, what the fastchat policy and what the spans policy make of it. "stops" is what
`--on_bad_sample error` does, the default of fastchat; with skip the record is excluded. Other outcomes:
action and remark, or "kept".
"""

from __future__ import annotations

import json
from typing import Any

from golden_text import human_gpt

H, G = "human", "gpt"
GOOD = human_gpt("Hi", "Ho")


def msg(role: Any, value: Any) -> dict[str, Any]:
    return {"from": role, "value": value}


def conv(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"conversations": list(messages), **more}


LONG = "word " * 80
KINDS: list[tuple[str, Any, str, str]] = [
    ("record is a string", "text", "stops: not_an_object", "excluded: not_an_object"),
    ("record is a list", [1], "stops: not_an_object", "excluded: not_an_object"),
    ("record is null", None, "stops: not_an_object", "excluded: not_an_object"),
    ("no conversations", {"id": "a"}, "stops: no_conversations", "excluded: no_conversations"),
    (
        "conversations is null",
        {"conversations": None},
        "stops: no_conversations",
        "excluded: no_conversations",
    ),
    (
        "conversations is an object",
        {"conversations": {"from": H}},
        "stops: no_conversations",
        "excluded: no_conversations",
    ),
    (
        "conversations is text",
        {"conversations": "Hi"},
        "stops: no_conversations",
        "excluded: no_conversations",
    ),
    ("conversations is empty", conv(), "stops: empty_conversation", "excluded: empty_conversation"),
    (
        "messages instead of conversations",
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]},
        "stops: no_conversations",
        "kept",
    ),
    (
        "conversations is null, with messages",
        {
            "conversations": None,
            "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}],
        },
        "stops: no_conversations",
        "kept",
    ),
    (
        "messages, with conversations that are null",
        {
            "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}],
            "conversations": None,
        },
        "stops: no_conversations",
        "kept",
    ),
    (
        "from and value are null, with role and content",
        conv(
            {"from": None, "value": None, "role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Ho", "from": None, "value": None},
        ),
        "stops: bad_message",
        "kept",
    ),
    ("message is a string", conv(*GOOD, "x"), "stops: bad_message", "salvaged: bad_message"),
    ("message without from", conv(*GOOD, {"value": "x"}), "stops: bad_message", "salvaged: bad_message"),
    ("message without value", conv(*GOOD, {"from": H}), "stops: bad_message", "salvaged: bad_message"),
    ("first message without value", conv({"from": H}, *GOOD), "stops: bad_message", "excluded: bad_message"),
    ("unknown role", conv(*GOOD, msg("narrator", "x")), "stops: unknown_role", "salvaged: unknown_role"),
    ("role alias", conv(msg("user", "Hi"), msg("chatgpt", "Ho")), "stops: unknown_role", "kept"),
    ("role is a number", conv(*GOOD, msg(5, "x")), "stops: unknown_role", "salvaged: unknown_role"),
    ("role is null", conv(msg(None, "x"), *GOOD), "stops: unknown_role", "excluded: unknown_role"),
    ("tool message", conv(*GOOD, msg("tool", "x")), "stops: unknown_role", "salvaged: unknown_role"),
    ("system as first message", conv(msg("system", "Be brief."), *GOOD), "stops: unknown_role", "kept"),
    (
        "system in the middle",
        conv(*GOOD, msg("system", "x"), *GOOD),
        "stops: unknown_role",
        "salvaged: broken_alternation",
    ),
    ("system key", conv(*GOOD, system="Be brief."), "noted: system_ignored", "kept"),
    ("system key is a list", conv(*GOOD, system=["x"]), "noted: system_ignored", "noted: system_ignored"),
    (
        "system key and system message",
        conv(msg("system", "x"), *GOOD, system="Be brief."),
        "stops: unknown_role",
        "noted: system_ignored",
    ),
    (
        "value is null",
        conv(*GOOD, *human_gpt("x", None)),
        "dropped: empty_last_reply",
        "salvaged: empty_last_reply",
    ),
    ("value is a number", conv(*GOOD, msg(H, 5)), "stops: not_text", "salvaged: not_text"),
    ("value is an object", conv(*GOOD, msg(H, {"a": 1})), "stops: not_text", "salvaged: not_text"),
    (
        "value is a list of text parts",
        conv(msg(H, [{"type": "text", "text": "Hi"}]), msg(G, "Ho")),
        "stops: not_text",
        "kept",
    ),
    (
        "value has an image part",
        conv(*GOOD, msg(H, [{"type": "image_url"}])),
        "stops: not_text",
        "salvaged: not_text",
    ),
    (
        "two humans in a row",
        conv(*GOOD, msg(H, "a"), *GOOD),
        "stops: broken_alternation",
        "salvaged: ends_with_user, broken_alternation",
    ),
    (
        "two replies in a row",
        conv(*GOOD, msg(G, "more")),
        "stops: broken_alternation",
        "salvaged: broken_alternation",
    ),
    (
        "two leading replies",
        conv(msg(G, "x"), msg(G, "y"), *GOOD),
        "stops: broken_alternation",
        "excluded: starts_with_assistant, broken_alternation",
    ),
    (
        "starts with the assistant",
        conv(msg(G, "x"), *GOOD),
        "salvaged: starts_with_assistant",
        "salvaged: starts_with_assistant",
    ),
    ("assistant only", conv(msg(G, "x")), "dropped: assistant_only", "excluded: assistant_only"),
    ("human only", conv(msg(H, "x")), "dropped: ends_with_user", "excluded: ends_with_user"),
    (
        "ends with a user turn",
        conv(*GOOD, msg(H, "x")),
        "dropped: ends_with_user",
        "salvaged: ends_with_user",
    ),
    ("empty user text", conv(*GOOD, *human_gpt("", "x")), "dropped: empty_user", "salvaged: empty_user"),
    (
        "empty last reply",
        conv(*GOOD, *human_gpt("x", "")),
        "dropped: empty_last_reply",
        "salvaged: empty_last_reply",
    ),
    (
        "empty reply in the middle",
        conv(*human_gpt("x", ""), *GOOD),
        "noted: empty_middle_reply",
        "salvaged: empty_middle_reply",
    ),
    ("role tag in text", conv(*human_gpt("say ASSISTANT: now", "ok")), "dropped: embedded_role_tag", "kept"),
    (
        "</s> in text",
        conv(*human_gpt("what is </s>?", "ok")),
        "dropped: embedded_eos",
        "noted: embedded_special",
    ),
    (
        "<unk> in text",
        conv(*human_gpt("what is <unk>?", "ok then")),
        "dropped: embedded_unk",
        "noted: embedded_special",
    ),
    (
        "<s> in text",
        conv(*human_gpt("what is <s> now", "ok then")),
        "noted: embedded_bos",
        "noted: embedded_special",
    ),
    (
        "lone surrogate",
        conv(*human_gpt("Hi", "a\ud800b")),
        "stops: lone_surrogate",
        "salvaged: lone_surrogate",
    ),
    (
        "longer than the limit",
        conv(*human_gpt("Hi", LONG)),
        "truncated: reply_truncated",
        "truncated: reply_truncated",
    ),
    (
        "no reply within the limit",
        conv(*human_gpt(LONG, "Ho")),
        "unlabelled: no_reply_left",
        "excluded: no_reply_left",
    ),
    ("developer as first message", conv(msg("developer", "Be brief."), *GOOD), "stops: unknown_role", "kept"),
    ("other keys and duplicate ids", conv(*GOOD, id="a", source="web"), "kept", "kept"),
]


def record_text(record: Any) -> str:
    return json.dumps(record)


def table() -> str:
    """docs/data_faults.md."""
    rows = "\n".join(f"| {kind} | {one} | {other} |" for kind, _, one, other in KINDS)
    return f"""# What becomes of malformed records

Made from `tests/support/malformed.py`: records of a file in FastChat's own format, `--data_format sharegpt`.
"stops" is `--on_bad_sample error`, the default of
`--mask_policy fastchat`; with `skip` the record is excluded and counted. `--mask_policy spans` skips by
default; with `error` it stops where fastchat does, unless it can read the record (role aliases, text parts).
The word before the colon is the outcome, the words after it are the names in `data_report.json`:

* *kept*, *noted*: labelled as it is; *truncated*: cut at `--model_max_length`
* *salvaged*: a part was taken out or repaired, the rest is labelled
* *dropped*, *unlabelled*: stays in its place and teaches nothing, as with FastChat
* *excluded*: has no row

A field such as `train` or `weight` that would not be followed (`bad_mark`) stops a run, also with `skip`
([data files](data_files.md#fields-that-say-what-is-learned)).

| record | fastchat | spans |
|---|---|---|
{rows}
"""


if __name__ == "__main__":
    from pathlib import Path

    (Path(__file__).parents[2] / "docs" / "data_faults.md").write_text(table(), "utf-8")
