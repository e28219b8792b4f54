"""`fastsft train --help`: short and by subject; all flags, one subject or one flag when asked for."""

from __future__ import annotations

import argparse
import re

import pytest

from fastsft.arguments.help import COMMON, argument_rows, subject_of
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.cli import main as cli

ROWS = {row.name: row for row in argument_rows() if row.flag.startswith("--")}


def helped(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        cli.main(["train", *words])
    assert left.value.code == 0
    return capsys.readouterr().out


def flags_in(text: str) -> list[str]:
    return re.findall(r"^  --(\w+)", text, re.M)


def test_common_flags_are_there_and_have_an_effect() -> None:
    names = [name for line in COMMON.values() for name in line.split() if name != "config"]
    assert len(names) == len(set(names))
    assert all(ROWS[name].treatment == "IMPLEMENT" for name in names)
    assert all(subject_of(name) in COMMON for name in ROWS)  # every flag has a subject


def test_help_is_short_and_names_each_flag_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = helped(capsys, "--help")
    shown = flags_in(text)
    assert len(text.splitlines()) < 110 and len(shown) == len(set(shown)) <= 60
    assert not any("-" in flag for flag in shown) and max(map(len, text.splitlines())) <= 110
    heads = [
        line for line in text.splitlines() if line and line[0] not in " -" and not line.startswith("usage")
    ]
    assert [head.split()[0].strip(",:") for head in heads][:10] == list(COMMON)


def test_help_all_names_every_flag_once_with_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    text = helped(capsys, "--help", "all")
    assert sorted(flags_in(text)) == sorted([*ROWS, "config"])
    assert " ".join(text.split()).count("[refused: ") == sum(
        row.treatment == "REJECT" for row in ROWS.values()
    )


@pytest.mark.parametrize("subject", COMMON)
def test_a_subject_has_its_flags_with_an_effect(subject: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = set(flags_in(helped(capsys, "--help", subject)))
    assert set(COMMON[subject].split()) <= shown
    assert all(name == "config" or ROWS[name].treatment == "IMPLEMENT" for name in shown)


@pytest.mark.parametrize("word", ["learning_rate", "--learning-rate"])
def test_one_flag(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--learning_rate  float; default 5e-05" in helped(capsys, f"--help={word}")
    assert cli.main(["args", word]) == 0
    assert "--learning_rate  float; default 5e-05" in capsys.readouterr().out


def test_a_part_of_names_and_a_word_that_nothing_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"save_steps", "save_dtype", "on_save_error"} <= set(flags_in(helped(capsys, "-h", "save")))
    with pytest.raises(SystemExit) as left:
        cli.main(["train", "--help", "packing"])
    assert left.value.code == 2 and "laid end to end" in capsys.readouterr().err


def test_a_parser_of_other_classes_has_help_of_argparse(capsys: pytest.CaptureFixture[str]) -> None:
    parser = DataclassParser(prog="mine")
    parser.add_argument("--own", help="of a script")
    assert isinstance(parser, argparse.ArgumentParser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    out = capsys.readouterr().out
    assert "usage: mine" in out and "of a script" in out
