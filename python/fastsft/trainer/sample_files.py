"""The prompts in a file of --sample_prompts: records of the data formats, cut after the last question."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fastsft.sources.data_files import DataFile, data_files
from fastsft.sources.readers import UNCONVERTED, as_sharegpt, read_records

_MOST_PROMPTS = 64
_MOST_BYTES = 1 << 24  # a larger file is not read
_USERS = ("user", "human")
_REPLY = {
    "role": "assistant",
    "content": "x",
    "from": "gpt",
    "value": "x",
}  # stands for the reply to generate
_FIELDS = {"messages": ("role", "content"), "conversations": ("from", "value")}


class Question(NamedTuple):
    """A prompt of a file: the text of its last message, and a record that ends with a placeholder reply."""

    text: str
    record: dict[str, Any]
    data_format: str

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the prompt."""
        return list(next(self.record[name] for name in _FIELDS if name in self.record)[:-1])

    @property
    def has_tools(self) -> bool:
        """True if the record names tools, or a message calls one."""
        return bool(self.record.get("tools")) or any(message.get("tool_calls") for message in self.messages)


def read_prompts(
    path: str, roles: Mapping[str, str] | None = None, data_format: str = "auto"
) -> list[Question]:
    """Return the prompts in a file.

    A .txt file has a prompt in each line. Other files have records as --data_path has them, whose messages
    after the last question are left out, or records with `prompt` alone. roles: --role_map. data_format:
    --data_format. ValueError, which names file and prompt, if a file is missing, can be read only once or is
    too large, or if a record has no question.
    """
    flag = f"--sample_prompts {path}"
    try:
        records = _records(path)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{flag}: expected a number, or a file with a prompt a line (.txt) or records as in --data_path, "
            f"got: {error}"
        ) from None
    if not records:
        raise ValueError(f"{flag}: expected prompts, got an empty file; write one a line, or give a number")
    if len(records) > _MOST_PROMPTS:
        raise _too_many(flag, f"{len(records):,} prompts")
    found = []
    for number, record in enumerate(records, 1):
        try:
            found.append(_question(record, roles or {}, data_format))
        except ValueError as error:
            raise ValueError(f"{flag}: prompt {number}: {error}") from None
    return found


def _too_many(flag: str, got: str) -> ValueError:
    return ValueError(
        f"{flag}: expected at most {_MOST_PROMPTS} prompts, got {got}; a number such as --sample_prompts 3 "
        "takes the first evaluation conversations"
    )


def _records(path: str) -> list[Any]:
    is_text = path.endswith(".txt")
    files = [DataFile(str(Path(path).expanduser()))] if is_text else data_files(path)
    for file in files:
        if file.is_stream and (file.path == "-" or os.path.exists(file.path)):
            raise ValueError(f"{file.path}, which can be read once; write the prompts to a file")
        if os.path.isfile(file.path) and (size := os.path.getsize(file.path)) > _MOST_BYTES:
            raise ValueError(
                f"a file of {size:,} bytes, at most {_MOST_PROMPTS} prompts are replied to; a number such as "
                "--sample_prompts 3 takes the first evaluation conversations"
            )
    if not is_text:
        return read_records(files, data_format=UNCONVERTED)
    lines = Path(files[0].path).read_bytes().decode("utf-8-sig").split("\n")
    return [{"prompt": line.strip()} for line in lines if line.strip()]


_AS_PROMPT = 'a plain question is {"prompt": "..."}'


def _question(record: Any, roles: Mapping[str, str], data_format: str) -> Question:
    """Return a record without the messages after the last question. ValueError for a record of other form."""
    if not isinstance(record, dict):
        raise ValueError(f'expected a record, got {_short(record)}; write {{"prompt": ...}}')
    if isinstance(prompt := record.get("prompt"), str | list) and "completion" not in record:
        more = {name: value for name, value in record.items() if name != "prompt"}
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        record, data_format = {**more, "messages": asked}, "messages"
    elif not any(name in record for name in _FIELDS):
        record, data_format = _converted(record, data_format), "sharegpt"
    field = next((name for name in _FIELDS if name in record), None)
    if field is None:
        raise ValueError(f'expected "prompt", "messages" or "conversations", got {_short(record)}')
    messages = record[field]
    if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
        bad = messages if not isinstance(messages, list) else next(m for m in messages if not _is_message(m))
        words = " and ".join(f'"{name}"' for name in _FIELDS[field])
        raise ValueError(
            f'expected "{field}" to be a list of messages with {words}, got {_short(bad)}; {_AS_PROMPT}'
        )
    names = [str(message.get("role", message.get("from"))) for message in messages]
    asked_by = [place for place, name in enumerate(names) if roles.get(name, name) in _USERS]
    if not asked_by:
        raise ValueError(
            f"expected a message of the user, got {_short(record)}, without a message of the user; "
            f"{_AS_PROMPT}"
        )
    last = messages[asked_by[-1]]
    reply = {name: _REPLY[name] for name in ("role", "content", "from", "value") if name in last}
    cut = {**record, field: [*messages[: asked_by[-1] + 1], reply]}
    return Question(_text(last.get("content", last.get("value"))), cut, data_format)


def _converted(record: dict[str, Any], data_format: str) -> dict[str, Any]:
    made = as_sharegpt(json.dumps([record]).encode(), "the record", data_format)
    found: list[dict[str, Any]] = json.loads(made)
    return found[0] if found else record


def _is_message(message: object) -> bool:
    if not isinstance(message, dict):
        return False
    of_role, said = message.get("role", message.get("from")), message.get("content", message.get("value"))
    return isinstance(of_role, str) and (isinstance(said, str | list) or bool(message.get("tool_calls")))


def _text(content: object) -> str:
    parts = content if isinstance(content, list) else [content]
    return "".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in parts)


def _short(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:80]
