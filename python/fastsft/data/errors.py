"""Define errors in conversation data.

Each error class is derived from ValueError and from the class that FastChat's script would raise.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from fastsft.data.interfaces import Fault


class DataError(ValueError):
    """A conversation cannot be trained on. The message names the record and the expected form."""


class DataKeyError(DataError, KeyError):
    """A record lacks a field, or has an unknown role."""

    def __str__(self) -> str:
        return ValueError.__str__(self)


class DataIndexError(DataError, IndexError):
    """A conversation is empty."""


class DataTypeError(DataError, TypeError):
    """A field of a record has the wrong type."""


class DataAssertionError(DataError, AssertionError):
    """The messages of user and assistant do not alternate."""


class DataRuntimeError(DataError, RuntimeError):
    """A text cannot be tokenised."""


_KINDS: dict[str, type[DataError]] = {
    "KeyError": DataKeyError,
    "IndexError": DataIndexError,
    "TypeError": DataTypeError,
    "AssertionError": DataAssertionError,
    "RuntimeError": DataRuntimeError,
    "ValueError": DataError,
}


# A pattern in the message about an unreadable file -> advice
_ADVICE = {
    r"\.(parquet|arrow|feather): record \d+, message \d+: text is a number": (
        "a column of bytes or numbers: write it as texts, as table.column(NAME).cast('string') does"
    ),
    r"\.(gz|zst): (not JSON at byte 0|expected an array)": "not packed, as the name says: fetch it again",
    r"\.ya?ml: (not JSON|expected an array)": "YAML is no data here; a file of flags is given as --config",
    r"invalid UTF-8(?!.*UTF-16)": (
        "iconv -f WINDOWS-1252 -t UTF-8 converts a file in Latin-1 or in a code page of Windows "
        "(Chinese: iconv -f GB18030 -t UTF-8)"
    ),
    r"\.(docx|pptx|odt): .*a ZIP archive": "or is it a document? Make conversations of its text",
    r"\.(md|rst|tex): not JSON": "a text: make conversations of it, as in docs/data_files.md",
    r"its fields are .*\b(model_type|architectures)\b": "a model's configuration: name conversations",
    r"\.(xlsx|ods): .*a ZIP archive": "or is it a spreadsheet? Save its table as CSV",
    r"\.(tar|tgz)(\.\w+)?: not JSON at byte 0": "an archive: unpack it, and name its files",
    r"not JSON at byte 0: .*column 1: #!": "a script, and no data: name a file of conversations",
    r"not JSON at byte 0: .*column 1: <": "a page of HTML or XML, and no data: fetch it again",
    r"not JSON at byte 0: expected a ": "JSON, JSON lines, Parquet, Arrow and CSV (by its name) are read",
    r"got nothing: the file is empty": "write records into it, or name another file",
    r"one record per line, got ": "a record is a JSON object, as in docs/data_files.md",
    r"closing quote of .*got the end of": "it was cut: copy or download it again, or a quote is missing",
    r"\.csv: record 0: no .*its fields are \w+[ :/]\w+ \[": "commas divide columns: prompt,completion",
    r"got the end of the line": "the line was cut: write the whole record on it, or copy the file again",
    r"\d: expected a key in quotes": 'JSON has "double quotes", and no comma before }; json.dump writes it',
    r"expected the end of the line \[line \d+, byte \d+: ,": "leave out the comma after a record of a line",
    r"expected a value after the comma": "leave out the comma before ], or add the record after it",
    r"expected the end of the file \[line \d+, column 1: \[": 'a line is a list: write {"messages": [...]}',
    r"expected the end of the file": "leave out what follows, or write one record a line, as .jsonl",
    r"got the end of the file": "it was cut: copy or download it again",
    r"not JSON at byte \d+": "correct that place, or write the file by json.dump",
}


_TURNS = "a message of the user, and after it a reply with text"
# Issue -> the form without it
EXPECTED = {
    "bad_message": 'messages with "from" and "value", or with "role" and "content": rename the fields',
    "not_json": 'a whole record of JSON in each line, with "double quotes"; .json is for an array',
    "not_text": "text as content; numbers go into quotes, pictures and sound are not trained",
    "unknown_role": "known roles: --role_map NAME=user,OTHER=assistant names them",
    "no_conversations": "records as in docs/data_files.md",
    "not_an_object": 'an object for each record, as in {"messages": [...]} or {"conversations": [...]}',
    "broken_alternation": "user and assistant in turn: join the two messages into one",
    "lone_surrogate": "text that UTF-8 can hold: leave out the half of a character, \\udXXX",
    "not_trained": 'a reply with "train": true, or without the field',
    **dict.fromkeys(
        ("ends_with_user", "empty_last_reply", "assistant_only", "empty_conversation", "empty_user"), _TURNS
    ),
}
_IN_ERRORS = (
    "bad_message",
    "broken_alternation",
    "empty_conversation",
    "lone_surrogate",
    "not_text",
)  # whose own texts say no way out


_FOR_SCRIPTS = ("no_conversations", "not_an_object")  # with a file, the flags' way out is said


def reading_hint(message: str) -> str:
    """Return advice to append to an error message about an unreadable file, or ""."""
    advice = next((advice for pattern, advice in _ADVICE.items() if re.search(pattern, message)), "")
    return advice and f"; {advice}"


@contextlib.contextmanager
def hinted_reading() -> Iterator[None]:
    """Append `reading_hint` to the messages of the native reader's errors in the block."""
    try:
        yield
    except ValueError as error:
        hint = reading_hint(str(error))
        if not hint:
            raise
        raise DataError(f"{error}{hint}") from None


def raise_first(faults: Sequence[Fault], num_faults: int | None = None, num_sound: int = 1) -> None:
    """Raise the error that FastChat would raise first: it renders all texts before it tokenises any text.

    faults: the first errors in a file. num_faults: the number of faulty records in the file; None if there is
    no file. With `num_faults`, the message names flags that help. num_sound: the number of records without
    errors; if 0, the message does not advise to skip records.
    """
    if not faults:
        return
    fault = next((f for f in faults if f.kind != "RuntimeError"), faults[0])
    source = getattr(fault, "file", "")
    message = f"{source}: {fault}" if source else str(fault)
    message += reading_hint(message)
    if fault.remark in _IN_ERRORS or (num_faults is None and fault.remark in _FOR_SCRIPTS):
        message += f"; expected {EXPECTED[fault.remark]}"
    if num_faults is not None:
        message += _ways_out(fault, num_sound > 0)
        if num_faults > 1:
            count = f"{'' if num_sound else 'all '}{num_faults}"
            message += f" ({count} records are at fault; --report_bad FILE lists them)"
    elif len(faults) > 1:
        message += f" ({len(faults)} records are at fault)"
    raise _KINDS[fault.kind](message)


def _ways_out(fault: Fault, may_skip: bool) -> str:
    """Return the part of the message that names flags for handling a bad record."""
    if fault.always_stops and fault.remark in ("not_json", "invalid_utf8"):
        return (
            "; FastChat's labels need every line; --mask_policy spans --template vicuna_v1.1 --on_bad_sample "
            "skip leaves such lines out"
        )
    if fault.always_stops:
        return ""
    if not may_skip and fault.remark == "no_conversations":
        return f"; these data formats are read: {', '.join(format_titles())}"
    is_named = fault.remark == "unknown_role" and "--mask_policy" not in str(fault)
    ways = ["--role_map NAME=user (or =assistant) tells what a role is"] * is_named
    ways += ["--on_bad_sample skip leaves such records out"] * may_skip
    return f"; {', '.join(ways)}" if ways else ""


def format_titles() -> list[str]:
    """Return the names of the data formats for messages."""
    from fastsft import _C

    return [_C.find_data_format(name).title for name in _C.data_formats()]
