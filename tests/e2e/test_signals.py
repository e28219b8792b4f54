"""SIGTERM, SIGINT and SIGUSR1 in every phase; the status, what is left, and that it resumes.

docs/spec/reliability.md, row R12.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.command_line import begin
from fastsft import _C
from warm_ranks import WarmRanks, spread

# Where each phase is entered, and at which call; a sleep there makes it last.
PHASES: dict[str, tuple[str, int]] = {
    "start": ("fastsft.model:CausalLM.from_pretrained", 1),
    "tokenizing": ("fastsft.data.data_module:label_conversation_file", 1),
    "before training": ("fastsft.trainer.trainer:checkpoint_to_resume", 2),
    "warm-up": ("op:rms_norm", 1),
    "step": ("op:embedding_backward", 4),
    "evaluation": ("fastsft.trainer.evaluation:_token_losses", 2),
    "save": ("fastsft.saving:CheckpointSaver.save", 1),
    "final save": ("fastsft.train:trainer_save_model_safe", 1),
}
ENDS = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 0}


def flags_of(flags: dict[str, Any], phase: str) -> dict[str, Any]:
    """Saves at the end only, but in the phase of saving; evaluates at step 2."""
    evaluation = {"eval_strategy": "steps", "eval_steps": 2, "eval_data_path": "data/first48.json"}
    evaluated = evaluation if phase == "evaluation" else {}
    return {**flags, "max_steps": 5, "save_steps": 2 if phase == "save" else 100, **evaluated}


def signalled(
    warm: WarmRanks,
    flags: dict[str, Any],
    output: Path,
    phase: str,
    number: int,
    ranks: int = 1,
    only: int = 0,
) -> tuple[list[int | None], str, float]:
    """Statuses, text, and seconds from the signal to the end, of a run that gets `number` in `phase`."""
    target, call = PHASES[phase]
    given = spread(flags_of(flags, phase), ranks)
    run = warm.start(given, output, ranks, ("place", target, "sleep", -1, call, 0.3))
    run.wait_for(f"reached {target}", rank=only)
    sent = time.monotonic()
    run.send(number, *([only] if phase not in ("start", "tokenizing") else []))
    return run.wait(60), run.all_text(), time.monotonic() - sent


def check(phase: str, number: int, statuses: list[int | None], text: str, output: Path) -> None:
    """What docs/signals.md says about a signal in `phase`."""
    saved = _C.list_checkpoints(str(output)) if output.is_dir() else []
    if phase in ("start", "tokenizing") and number != signal.SIGUSR1:
        assert statuses == [ENDS[number]] * len(statuses), text
        assert text.count("before the first step: there is nothing to save, the run ends") == 1
        assert saved == [] and "Traceback" not in text
        return
    expected = 0 if phase == "final save" else ENDS[number]
    assert statuses == [expected] * len(statuses), text
    assert "Traceback" not in text
    assert saved and not any(_C.verify_directory(str(output / name)) for name in saved)
    if phase == "final save":
        assert (output / "model.safetensors").is_file()
    elif phase in ("start", "tokenizing"):
        assert "there is nothing to save, the run goes on" in text
    else:
        assert "the same command resumes from it" in text


@pytest.mark.variants("start", "before training", "step", "[save", "final save")
@pytest.mark.parametrize(
    ("phase", "number"),
    [("start", signal.SIGTERM), ("tokenizing", signal.SIGINT), ("before training", signal.SIGINT),
     ("warm-up", signal.SIGTERM), ("step", signal.SIGUSR1), ("evaluation", signal.SIGTERM),
     ("save", signal.SIGINT), ("final save", signal.SIGTERM)],
)  # fmt: skip
def test_a_signal_in_every_phase(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path, phase: str, number: int
) -> None:
    statuses, text, seconds = signalled(warm, flags, tmp_path, phase, number)
    check(phase, number, statuses, text, tmp_path)
    assert seconds < 30


def test_a_signal_to_one_of_two_ranks_ends_both_and_resumes(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path
) -> None:
    statuses, text, _ = signalled(warm, flags, tmp_path, "step", signal.SIGTERM, ranks=2, only=1)
    check("step", signal.SIGTERM, statuses, text, tmp_path)
    (name,) = _C.list_checkpoints(str(tmp_path))
    assert (
        f"resumed from {tmp_path / name}"
        in warm.start(spread(flags_of(flags, "step"), 2), tmp_path, 2).finish()
    )


@pytest.mark.variants("[2]")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_second_interrupt_leaves_at_once(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path, ranks: int
) -> None:
    """Also where the main thread does not come back to Python: it waits in a step that takes a minute."""
    fault = ("place", "op:rms_norm", "sleep", 0, 6, 60.0)
    run = warm.start(spread(flags, ranks), tmp_path, ranks, fault)
    run.wait_for("reached op:rms_norm")
    run.send(signal.SIGINT)
    run.wait_for("received SIGINT: the step under way is ended and a checkpoint saved")
    assert run.left() == list(range(ranks)), run.all_text()
    time.sleep(0.5)  # rank 1 has heard of it, too: signals that follow each other at once are one
    sent = time.monotonic()
    run.send(signal.SIGINT)
    assert run.wait(40) == [130] * ranks, run.all_text()
    assert time.monotonic() - sent < 30  # of the minute
    assert "interrupted: not saved" in run.all_text()


def test_a_second_interrupt_still_saves_what_takes_less_than_seconds(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path
) -> None:
    """On a busy machine, too: these seconds are a minute here."""
    asleep = ("place", "op:rms_norm", "sleep", 0, 6, 1.5)
    patient = ("replace", 0, "fastsft.trainer.signals:_SAVE_SECONDS", 60.0)
    run = warm.start({**flags, "save_steps": 100}, tmp_path, 1, ("all_of", asleep, patient))
    run.wait_for("reached op:rms_norm")
    run.send(signal.SIGINT)
    run.wait_for("received SIGINT")
    run.send(signal.SIGINT)
    run.wait_for("leaves in 60 s, saved by then or not")
    assert run.wait() == [130], run.all_text()
    assert "the same command resumes from it" in run.all_text() and _C.list_checkpoints(str(tmp_path))


@pytest.mark.chaos
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("trial", range(10))
def test_every_phase_ten_times(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path, phase: str, trial: int
) -> None:
    """All three signals, one rank and two, to the first and to the second of them."""
    number = list(ENDS)[trial % 3]
    ranks = 1 + trial % 2
    statuses, text, seconds = signalled(
        warm, flags, tmp_path, phase, number, ranks, only=(trial // 2) % ranks if phase != "final save" else 0
    )
    check(phase, number, statuses, text, tmp_path)
    assert seconds < 30


@pytest.mark.chaos
def test_torchrun_passes_its_signal_on(flags: dict[str, Any], tmp_path: Path) -> None:
    """The agent gets SIGTERM, as from SLURM; its ranks save and leave before it kills them."""
    given = {**spread(flags, 2), "save_steps": 100, "num_train_epochs": 20}
    process = begin(given, tmp_path, ranks=2)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "'loss'" in line and sum("'loss'" in text for text in lines) == 3:
            process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) != 0
    (name,) = _C.list_checkpoints(str(tmp_path))
    assert _C.verify_directory(str(tmp_path / name)) == []
    assert any("the same command resumes from it" in line for line in lines), "".join(lines)


@pytest.mark.parametrize("program", ["fastsft.train", "fastsft.cli.main"])
def test_an_interrupt_while_libraries_load_ends_the_process(program: str) -> None:
    """At once and without a traceback: one that an import swallows leaves libraries half loaded."""
    child = subprocess.Popen(
        [sys.executable, "-m", program, *(["inspect"] if program.endswith("main") else []), "--help"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    maps = Path(f"/proc/{child.pid}/maps")
    while child.poll() is None and "_multiarray_umath" not in maps.read_text():
        time.sleep(0.0005)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == -signal.SIGINT and "Traceback" not in said, said
