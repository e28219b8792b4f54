"""A run that `fastsft doctor` looks at, and what it says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastsft.cli import main as cli
from golden_text import conversation_file

DATA = conversation_file("dummy_conversation")
MARKS = ("ok", "warning", "failed", "not checked")


class Patient:
    """Runs the doctor on one command line; each call returns the checks as name -> (mark, text)."""

    def __init__(self, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.output, self._capsys, self.status = tmp_path / "out", capsys, 0
        self.words = {
            "--model_name_or_path": str(model), "--data_path": str(DATA), "--output_dir": str(self.output),
            "--model_max_length": "256", "--save_total_limit": "1", "--use_cpu": "True",
        }  # fmt: skip

    def __call__(self, *more: str, skip: str = "disk_rate", **words: str) -> dict[str, tuple[str, str]]:
        flags = {**self.words, **{f"--{name}": value for name, value in words.items()}}
        line = [part for pair in flags.items() for part in pair]
        self.status = cli.main(["doctor", "--skip", skip, *line, *more])
        self.text = self._capsys.readouterr().out
        return checks_of(self.text)


def checks_of(text: str) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    name = ""
    for line in text.splitlines()[:-1]:
        if line[:13].strip():
            name = line[13:28].strip()
            found[name] = line[:13].strip(), line[28:]
        else:
            found[name] = found[name][0], f"{found[name][1]}\n{line[28:]}"
    assert all(mark in MARKS for mark, _ in found.values()), text
    return found


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}
