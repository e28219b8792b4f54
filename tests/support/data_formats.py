"""The same conversations in every data format that has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastsft import _C
from fastsft.sources.data_files import data_files
from fastsft.sources.readers import open_input

# What a person asked and got as answer, turn by turn; the record's number of turns is 1 to 3.
TURNS = [
    [('Who wrote "Faust"?\nIn one line.', "Goethe.")],
    [("Hi", "Hello, how are you?"), ("Fine. 2 + 2?", "4, of course.")],
    [("a b  c", "D e"), ("", "Nothing was asked."), ("\u00fcber \u4f60\u597d", " ok ")],
]


def chat(turns: list[tuple[str, str]], names: tuple[str, str, str, str]) -> list[dict[str, Any]]:
    role, text, user, assistant = names
    pairs = [(user, ask, assistant, reply) for ask, reply in turns]
    return [
        {role: who, text: what}
        for asks, ask, says, reply in pairs
        for who, what in ((asks, ask), (says, reply))
    ]


FROM_VALUE = ("from", "value", "human", "gpt")
ROLE_CONTENT = ("role", "content", "user", "assistant")
FORMATS: dict[str, list[dict[str, Any]]] = {
    "sharegpt": [{"id": f"r{i}", "conversations": chat(t, FROM_VALUE)} for i, t in enumerate(TURNS)],
    "messages": [{"id": f"r{i}", "messages": chat(t, ROLE_CONTENT)} for i, t in enumerate(TURNS)],
    "dialogue": [{"topic": "x", "dialogue": chat(t, ROLE_CONTENT)} for t in TURNS],
    "chat": [{"chat": chat(t, FROM_VALUE), "lang": None} for t in TURNS],
    "alpaca": [
        {"instruction": t[-1][0], "input": "", "output": t[-1][1], "history": [list(pair) for pair in t[:-1]],
         "text": "Below is an instruction"}
        for t in TURNS
    ],
    "prompt_completion": [{"completion": t[0][1], "prompt": t[0][0]} for t in TURNS],
    "question_answer": [{"answer": t[0][1], "question": t[0][0], "context": ""} for t in TURNS],
    "prompt_response": [{"prompt": t[0][0], "response": t[0][1]} for t in TURNS],
    "prompt_completion_lists": [
        {"prompt": chat(t[:1], ROLE_CONTENT)[:1], "completion": chat(t, ROLE_CONTENT)[1:]} for t in TURNS
    ],
}  # fmt: skip


def write_records(path: Path, records: list[Any]) -> Path:
    """As an array, or as lines where the name ends in .jsonl."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    else:
        path.write_text(json.dumps(records), "utf-8")
    return path


def converted(path: Path, written: str = "sharegpt") -> list[Any]:
    """The records of a data file as `fastsft data convert` writes them."""
    parts: list[bytes] = []
    bad: list[bytes] = []
    inputs = [open_input(file) for file in data_files(str(path))]
    _C.convert_inputs(inputs, written, True, parts.append, bad.append)
    assert not bad, bad
    return list(json.loads(b"".join(parts)))


def labelled(path: Path, labeller: Any, data_format: str = "auto") -> Any:
    """_C.LabelledData of a data file."""
    inputs = [open_input(file, data_format=data_format) for file in data_files(str(path))]
    return _C.label_inputs(inputs, labeller)
