"""Data files that are not as they should be: the commands say so in a line, with the place; no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastsft.arguments import DataArguments
from fastsft.cli import main as cli
from fastsft.program import main as entry
from fastsft.sources.data_files import data_files
from fastsft.sources.readers import open_input

TALK = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]
SOUND = json.dumps({"id": "a", "conversations": TALK}).encode()
BOM = b"\xef\xbb\xbf"


def with_id(value: bytes) -> bytes:
    return SOUND.replace(b'"a"', value, 1)


def with_text(value: bytes) -> bytes:
    return SOUND.replace(b'"Hi"', b'"' + value + b'"', 1)


# name: content, whether something can be learned of it, what is said
CASES: dict[str, tuple[bytes, bool, str]] = {
    "plain": (SOUND, True, ""),
    "mark": (BOM + SOUND, True, ""),
    "mark twice": (BOM + BOM + SOUND, False, "byte 3"),
    "mark at the second line": (SOUND + b"\n" + BOM + SOUND, True, ""),
    "utf16": (b"\xff\xfe" + SOUND.decode().encode("utf-16-le"), False, "iconv -f UTF-16 -t UTF-8"),
    "utf32 without a mark": (SOUND.decode().encode("utf-32-le"), False, "iconv -f UTF-32LE"),
    "line separators of unicode": (SOUND + "\u2028".encode() + SOUND, False, ""),
    "mixed newlines": (SOUND + b"\r\n" + SOUND + b"\n\r\n" + SOUND, True, ""),
    "nuls between lines": (SOUND + b"\n\0\0\n" + SOUND, True, ""),
    "nul in a string": (with_text(b"a\0b"), False, ""),
    "nul as an escape": (with_text(b"a\\u0000b"), True, ""),
    "nuls at the end": (SOUND + b"\n" + b"\0" * 5000, True, ""),
    "no utf8": (with_text(b"\xff\xfe"), False, ""),
    "overlong utf8": (with_text(b"\xc0\xaf"), False, ""),
    "surrogates in utf8": (with_text(b"\xed\xa0\x80"), False, ""),
    "lone surrogate": (with_text(b"\\ud800"), True, "lone_surrogate"),
    "lone surrogate in a key": (SOUND.replace(b'"id"', b'"\\ud800"', 1), True, ""),
    "lone surrogate in the id": (with_id(b'"\\ud800"'), True, ""),
    "lone surrogate in a role": (SOUND.replace(b'"human"', b'"\\ud800"', 1), False, ""),
    "key twice": (SOUND[:-1] + b', "id": "b"}', True, ""),
    "numbers without end": (with_id(b"1e999"), True, ""),
    "negative numbers without end": (SOUND.replace(b'"Hi"', b"-1e999", 1), False, ""),
    "a million digits": (with_id(b"9" * 1_000_000), True, ""),
    "a million digits of an exponent": (with_id(b"1e" + b"9" * 1_000_000), True, ""),
    "199 deep": (with_id(b"[" * 190 + b"]" * 190), True, ""),
    "millions deep": (b"[" * 2_000_000, False, "nested"),
    "millions deep and closed": (b"[" * 1_000_000 + b"]" * 1_000_000, False, "nested"),
    "millions deep in a record": (with_id(b"[" * 1_000_000 + b"]" * 1_000_000), False, "1 excluded"),
    "objects in objects": (with_id(b'{"a":' * 500_000 + b"1" + b"}" * 500_000), False, "1 excluded"),
    "many empty keys": (SOUND[:-1] + b', "":1' * 100_000 + b"}", True, ""),
    "many messages": (
        b'{"conversations": [' + b",".join([b'{"from":"human","value":""}'] * 50_000) + b"]}",
        False,
        "",
    ),
    "many faults": ((b'{"id": 1}\n') * 20_000, False, ""),
    "id with escapes": (
        with_id(b'"\\u001b[2J\\u0007"').replace(b'"from"', b'"x"'),
        False,
        "\\x1b[2J",
    ),
    "role with escapes": (SOUND.replace(b'"human"', b'"\\u001b[2J"', 1), False, "\\x1b[2J"),
    "error with escapes": (b"\x1b[2J\x07", False, "byte 0"),
    "id is a list": (with_id(b"[1, 2]"), True, ""),
    "empty": (b"", False, "the file is empty"),
    "only white space": (b" " * 5_000_000, False, "the file is empty"),
    "only newlines": (b"\n" * 5_000_000, False, "the file is empty"),
    "array without its end": (b"[" + SOUND, False, "not JSON at byte"),
    "rubbish after an array": (b"[" + SOUND + b"] x", False, "not JSON at byte"),
    "two arrays": (b"[" + SOUND + b"][" + SOUND + b"]", False, "not JSON at byte"),
    "an array, then lines": (b"[" + SOUND + b"]\n" + SOUND, False, "not JSON at byte"),
    "a text": (b'"text"', False, "got text"),
    "a number": (b"17", False, "got a number"),
    "a line, then an array": (SOUND + b"\n[" + SOUND + b"]", True, ""),
}


def is_calm(text: str) -> bool:
    return all(line.isprintable() for line in text.splitlines()) and "Traceback" not in text


@pytest.mark.parametrize("name", CASES)
def test_the_report(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, is_learnable, expected = CASES[name]
    path = tmp_path / "data\x1b[2J.json"
    path.write_bytes(content)
    status = cli.main(["data", "report", str(path)])
    said = capsys.readouterr()
    assert is_calm(said.out.replace("\t", "")) and is_calm(said.err)
    assert status == (0 if is_learnable else 1), said.out + said.err
    assert expected in said.out + said.err
    assert len(said.err.splitlines()) <= 1


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name][1]])
def test_training_ends_with_a_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the policy of FastChat does with the same file: an error with status 1, or rows."""
    from fastsft import _C
    from fastsft.data.chat.labelling import LabelSettings, make_labeller
    from fastsft.data.errors import raise_first
    from fastsft.tokenizer.json_tokenizer import byte_tokenizer

    path = tmp_path / "data.json"
    path.write_bytes(CASES[name][0])

    def script() -> None:
        DataArguments(data_path=str(path)).check_files()
        settings = LabelSettings(mask_policy="spans", template="vicuna_v1.1", on_bad_sample="error")
        labeller = make_labeller(byte_tokenizer(["</s>"]), 1 << 20, -1, settings)
        labelled = _C.label_inputs([open_input(file) for file in data_files(str(path))], labeller)
        raise_first(labelled.faults, num_faults=labelled.num_faults)

    monkeypatch.setattr("sys.argv", ["train", "--help"])
    try:
        entry.run_script(script)
        status = 0
    except SystemExit as left:
        status = int(str(left.code))
    said = capsys.readouterr().err
    assert is_calm(said) and len(said) < 1000
    if status:
        assert status == 1 and said.startswith("error: ")
