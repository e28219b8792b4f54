"""Standard output of a command that has a result holds the result: notices go to standard error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from family_models import TEMPLATES, write_family
from fastsft.cli import main as cli
from fastsft.runtime.messages import beside_result, tell
from golden_text import human_gpt

NOTICE = "chat template: strftime_now gives"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of Llama 3.2, whose template asks for the date, which is told."""
    folder = write_family(tmp_path_factory.mktemp("dated") / "model", "llama3")
    shutil.copyfile(TEMPLATES / "llama-3.2.jinja", folder / "chat_template.jinja")
    return folder


def test_a_report_is_json(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps([{"conversations": human_gpt("Hello?", "Hi there.")}]))
    words = ["data", "report", str(data), "--model", str(model), "--mask_policy", "spans", "--json"]
    assert cli.main(words) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["records"] == 1
    assert NOTICE in printed.err


def test_a_chat_prints_its_reply(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--message", "Hi", "--max_new_tokens", "1", "--device", "cpu"]
    assert cli.main(["chat", str(model), *words]) == 0
    printed = capsys.readouterr()
    assert NOTICE in printed.err and "chat template" not in printed.out
    assert "the run" not in printed.err


def test_notices_of_a_run_are_in_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    with beside_result():
        tell("of a command")
    tell("of a run")
    assert capsys.readouterr() == ("of a run\n", "of a command\n")
