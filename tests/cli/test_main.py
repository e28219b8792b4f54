"""The dispatcher: one word, one module, imported only then."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from fastsft.cli import main as cli


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in cli.COMMANDS)


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    text = capsys.readouterr().err
    assert all(name in text for name in cli.COMMANDS) and "rest" not in text.splitlines()[0]


def test_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["dmeo"])
    assert end.value.code == 2
    assert "demo" in capsys.readouterr().err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    assert f"fastsft {name}" in capsys.readouterr().out


def test_the_dispatcher_imports_nothing_heavy() -> None:
    code = (
        "import sys, fastsft.cli.main; print(*{'torch', 'transformers', 'numpy'}.intersection(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def test_train_becomes_the_training_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """And by `python -m fastsft` too: what it says is the program's own."""
    seen: list[Any] = []

    def execve(*call: object) -> None:
        seen.append(call)
        raise SystemExit

    monkeypatch.setattr("os.execve", execve)
    with pytest.raises(SystemExit):
        cli.main(["train", "--seed", "1", "--data", "a b.json"])
    ((path, command, environment),) = seen
    assert path == sys.executable
    assert command == [path, "-P", "-m", "fastsft.train", "--seed", "1", "--data", "a b.json"]
    words = [sys.executable, "-m", "fastsft", "train", "--seed", "x"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and "--seed: expected a whole number, got 'x'" in done.stderr
    assert done.stderr.startswith("python -m fastsft.train: error: ") and len(done.stderr.splitlines()) == 1


def test_an_interrupt_and_a_reader_that_went_away_are_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("fastsft.cli.main.print_path", interrupted)
    assert cli.main(["path", "train"]) == 130
    assert capfd.readouterr().err == "interrupted\n"
    code = "import sys; from fastsft.cli.main import main; sys.exit(main(['args']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout is not None and run.stderr is not None
        run.stdout.read(10)
        run.stdout.close()
        assert run.stderr.read() == b""
    assert run.returncode == 0
