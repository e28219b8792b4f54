"""The way from `train()` to the engine stays short, and no part takes the Trainer itself."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fastsft
from fake_run import Engine, fake_trainer
from fastsft.trainer import Trainer

PACKAGE = Path(fastsft.__file__).parent
PAGES = ("train.py", "trainer/loop.py", "trainer/trainer.py")
MOST_LINES = 45


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    """All functions and methods of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("page", PAGES)
def test_functions_of_the_pages_are_short(page: str) -> None:
    long = {
        node.name: length
        for node in functions(PACKAGE / page)
        if (length := node.end_lineno - node.lineno + 1) > MOST_LINES  # type: ignore[operator]
    }
    assert not long


def test_the_trainer_has_one_base_class() -> None:
    assert [len(kind.__bases__) for kind in Trainer.__mro__[:-1]] == [1, 1]


def test_no_part_takes_the_trainer() -> None:
    """Guards in compat/ alone look at the object itself, whose methods a script may have replaced."""
    takers = [
        f"{path.name}: {node.name}"
        for path in (PACKAGE / "trainer").glob("*.py")
        for node in functions(path)
        if "trainer" in {argument.arg for argument in node.args.args}
    ]
    assert not takers


def test_four_calls_lead_from_the_trainer_to_the_engine(tmp_path: Path) -> None:
    ways: list[list[str]] = []

    class Traced(Engine):
        def begin_step(self, *given: Any, **options: Any) -> None:
            frames = [
                frame for frame in traceback.extract_stack() if Path(frame.filename).is_relative_to(PACKAGE)
            ]
            ways.append([f"{Path(frame.filename).name}:{frame.name}" for frame in frames])
            super().begin_step(*given, **options)

    fake_trainer(tmp_path, engine=Traced()).train()
    assert ways[0] == ["trainer.py:train", "loop.py:train", "loop.py:run_epochs", "stepper.py:step"]
