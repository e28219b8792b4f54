"""Whatever happened to a file of a checkpoint is found, named, and passed over.

docs/spec/reliability.md, rows R5, R6, R7 and R15.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C, saving
from saving_run import make_trainer


@pytest.fixture
def model(models: dict[str, Path]) -> Path:
    return models["untied"]


@pytest.fixture
def output(finished: Path, tmp_path: Path) -> Path:
    for step in (4, 6):
        shutil.copytree(finished / f"checkpoint-{step}", tmp_path / f"checkpoint-{step}")
    return tmp_path


def cut(size: Callable[[bytes], int]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: size(content)])

    return damage


def header_less_one(content: bytes) -> int:
    """One byte short of a safetensors header's end; of any other file, a quarter."""
    length = int.from_bytes(content[:8], "little")
    return 8 + length - 1 if length < len(content) else len(content) // 4


def of_another_step(path: Path) -> None:
    path.write_bytes((path.parents[1] / "checkpoint-4" / path.name).read_bytes())


def of_another_file(path: Path) -> None:
    """Two files of one checkpoint in each other's place."""
    others = [other for other in sorted(path.parent.iterdir()) if other.name != path.name]
    path.write_bytes(others[0].read_bytes())


DAMAGES: dict[str, Callable[[Path], None]] = {
    "0 bytes": cut(lambda _: 0),
    "1 byte": cut(lambda _: 1),
    "7 bytes": cut(lambda _: 7),
    "8 bytes": cut(lambda _: 8),
    "the header but one byte": cut(header_less_one),
    "half": cut(lambda content: len(content) // 2),
    "all but a byte": cut(lambda content: len(content) - 1),
    "a byte more": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "missing": lambda path: path.unlink(),
    "of another step": of_another_step,
    "of another file": of_another_file,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_torn_file_is_named_and_the_one_before_taken(output: Path, damage: str, caplog: Any) -> None:
    newest, count = output / "checkpoint-6", 0
    for path in sorted(newest.iterdir()):
        whole = path.read_bytes()
        DAMAGES[damage](path)
        changed = not path.exists() or path.read_bytes() != whole
        caplog.clear()
        found = saving.newest_checkpoint(output)
        path.write_bytes(whole)
        if not changed:  # a file that is the same at every step
            assert found == str(newest)
            continue
        count += 1
        assert found == str(output / "checkpoint-4"), path.name
        assert f"{newest} cannot be used: " in caplog.text
        # Another step's manifest is whole: what differs are all the files that it speaks of.
        replaced = path.name == "manifest.json" and damage == "of another step"
        assert path.name in caplog.text or replaced
    assert count >= 5 and saving.newest_checkpoint(output) == str(newest)


def test_a_thousand_flipped_bits(output: Path) -> None:
    """One bit of a file chosen at random, each file as likely."""
    chance, newest, missed = random.Random(6), output / "checkpoint-6", []
    files = {path: path.read_bytes() for path in sorted(newest.iterdir())}
    for _ in range(1000):
        path = chance.choice(list(files))
        position, bit = chance.randrange(len(files[path])), chance.randrange(8)
        with path.open("r+b") as file:
            file.seek(position)
            file.write(bytes([files[path][position] ^ 1 << bit]))
        problems = _C.verify_directory(str(newest))
        with path.open("r+b") as file:
            file.seek(position)
            file.write(files[path][position : position + 1])
        if not any(path.name in problem for problem in problems):
            missed.append((path.name, position, bit))
    assert missed == [] and _C.verify_directory(str(newest)) == []


def test_when_none_verifies_nothing_starts(output: Path, model: Path) -> None:
    for number, step in enumerate((4, 6)):
        path = sorted((output / f"checkpoint-{step}").glob("*.safetensors"))[number]
        path.write_bytes(path.read_bytes()[:-1])
    trainer = make_trainer(model, output)
    with pytest.raises(ValueError, match="none can be used") as caught:
        trainer.train(resume_from_checkpoint=True)
    assert "checkpoint-4: " in str(caught.value) and "checkpoint-6: " in str(caught.value)
    assert trainer.state.global_step == 0 and trainer.engine.step_count == 0


@pytest.mark.parametrize("best", [None, "checkpoint-1", "checkpoint-2"])
def test_torn_ones_do_not_count_and_the_best_stays(finished: Path, tmp_path: Path, best: str | None) -> None:
    """k = 2 with three torn folders, older, between and newer: they push no good one out."""
    for name, source in (("checkpoint-1", 2), ("checkpoint-2", 2), ("checkpoint-4", 4), ("checkpoint-6", 6)):
        shutil.copytree(finished / f"checkpoint-{source}", tmp_path / name)
    torn = ["checkpoint-0", "checkpoint-3", "checkpoint-9"]
    for name in torn:
        shutil.copytree(finished / "checkpoint-4", tmp_path / name)
        (tmp_path / name / "manifest.json").unlink()
    _C.rotate_checkpoints(str(tmp_path), 2, [best or "", "checkpoint-6"])
    left = sorted(path.name for path in tmp_path.iterdir())
    expected = {"checkpoint-4", "checkpoint-6"} if best is None else {best, "checkpoint-6"}
    assert set(left) - set(torn) == expected
    assert saving.newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-6")
