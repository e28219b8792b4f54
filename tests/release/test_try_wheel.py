"""What is found in an environment of its own: another torch, a compiler, other bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import try_wheel

HISTORY = [
    {"step": 1, "loss": 6.9, "grad_norm": 4.920846159938, "learning_rate": 0.003},
    {"step": 1, "train_runtime": 2.0},
]


def demo(folder: Path) -> Path:
    """The files of a demo that count."""
    for name in try_wheel.BITS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"log_history": HISTORY, "best": str(folder)}))
    return folder


def test_the_same_bits(tmp_path: Path) -> None:
    one, other = demo(tmp_path / "one"), demo(tmp_path / "other")
    for name in try_wheel.BITS[:2]:
        (other / name).write_bytes((one / name).read_bytes())
    assert try_wheel.differences(one, other) == []
    slower = [HISTORY[0], {"step": 1, "train_runtime": 3.0}]
    (other / "trained" / "trainer_state.json").write_text(json.dumps({"log_history": slower}))
    assert try_wheel.differences(one, other) == []


@pytest.mark.parametrize("name", try_wheel.BITS)
def test_other_bits(tmp_path: Path, name: str) -> None:
    one, other = demo(tmp_path / "one"), demo(tmp_path / "other")
    for each in try_wheel.BITS:
        (other / each).write_bytes((one / each).read_bytes())
    (other / name).write_text((other / name).read_text().replace("4.920846159938", "4.920846029800"))
    assert try_wheel.differences(one, other) == [name]


class Fresh:
    """An environment whose torch becomes another one when the wheel is installed."""

    seconds = (1.0, 1.0)

    def __init__(self, programs: Path, torches: list[str]) -> None:
        self.programs, self._torches = programs, torches

    def torch(self) -> str:
        return self._torches.pop(0)

    def run(self, *command: str) -> str:
        return "site-packages/core"


def test_a_torch_that_is_replaced(tmp_path: Path) -> None:
    try_wheel._install(Fresh(tmp_path, ["2.12.1", "2.12.1"]), Path("a.whl"))
    with pytest.raises(ValueError, match=r"expected torch 2\.12\.1 to stay, got 2\.11\.0"):
        try_wheel._install(Fresh(tmp_path, ["2.12.1", "2.11.0"]), Path("a.whl"))


@pytest.mark.parametrize("name", try_wheel.COMPILERS)
def test_an_environment_with_a_compiler(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch(0o755)
    with pytest.raises(ValueError, match="expected an environment without a compiler, found"):
        try_wheel._install(Fresh(tmp_path, ["2.12.1"]), Path("a.whl"))
