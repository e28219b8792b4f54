"""A Trainer looks for a script's changes unless fastsft's own program alone runs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import fastsft
from fake_run import fake_trainer
from fastsft.runtime.launch import only_own_code, script_may_run
from fastsft.trainer import Trainer

PACKAGE = Path(fastsft.__file__).parent


def program(name: str, file: str, spec: str | None = None) -> ModuleType:
    """A module as __main__."""
    module = ModuleType(name)
    module.__file__, module.__spec__ = file, None if spec is None else SimpleNamespace(name=spec)  # type: ignore[assignment]
    return module


@pytest.mark.parametrize(
    "main, may_run",
    [
        (program("__main__", "script.py"), True),
        (program("__main__", "/usr/bin/fastsft"), False),
        (program("__main__", str(PACKAGE / "train.py"), "fastsft.train"), False),
        (program("__main__", str(PACKAGE / "train.py")), False),
        (program("__main__", "x/__main__.py", "fastsftplus.__main__"), True),
    ],
)
def test_the_first_program_decides(main: ModuleType, may_run: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert script_may_run()
    with only_own_code():
        assert script_may_run() is may_run
    assert script_may_run()


def test_objects_of_a_script_are_looked_at_in_any_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model of this Trainer is no directory that fastsft opened."""
    monkeypatch.setitem(sys.modules, "__main__", program("__main__", "/usr/bin/fastsft"))
    with only_own_code():
        trainer = fake_trainer(tmp_path)
    monkeypatch.setattr(Trainer, "compute_loss", lambda *_: 0, raising=False)
    with pytest.raises(ValueError, match="compute_loss would never be called"):
        trainer.train()
