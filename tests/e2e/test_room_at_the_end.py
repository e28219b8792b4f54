"""The final model has room before the first step, or is waited for at the end: no trained weights are lost.

docs/spec/reliability.md, row R8.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.checkpoint.last_save import LastSaves
from fastsft.trainer.signals import SignalGuard
from small_disks import fill, small_disk, why_not
from tiny_models import weights_of
from warm_ranks import Run, WarmRanks, spread

MEGABYTES = 16
WAITS = "the model is saved when there is room: waiting for up to "


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    reason = why_not("tmpfs", tmp_path / "probe")
    if reason:
        pytest.skip(reason)
    with small_disk("tmpfs", tmp_path, MEGABYTES) as place:
        yield place


@pytest.fixture
def two_steps(short: dict[str, Any]) -> dict[str, Any]:
    return {**short, "max_steps": 2, "save_strategy": "no", "plot_loss": False}


def weights(short: dict[str, Any]) -> int:
    """Bytes of the model's file."""
    return (Path(short["model_name_or_path"]) / "model.safetensors").stat().st_size


def start_full(
    warm: WarmRanks, flags: dict[str, Any], disk: Path, ranks: int, fault: tuple[str, ...] = (), **more: Any
) -> Run:
    """A run that begins without room for its model, as --on_save_error continue lets it."""
    fill(disk, weights(flags) // 2)
    every = {**spread(flags, ranks), "on_save_error": "continue", **more}
    return warm.start(every, disk / "out", ranks, fault)


@pytest.mark.parametrize("strategy", ["no", "steps"])
def test_a_model_without_room_is_refused_at_the_start(
    warm: WarmRanks, two_steps: dict[str, Any], disk: Path, strategy: str
) -> None:
    size = weights(two_steps)
    flags = {**two_steps, "save_strategy": strategy, "save_steps": 1}
    # With its optimizer state a checkpoint is four times the model.
    fill(disk, size // 2 if strategy == "no" else size * 9 // 2)
    run = warm.start(flags, disk / "out")
    assert run.wait(60) == [1]
    also = " next to a checkpoint of " if strategy == "steps" else ""
    assert "the model at the end of the run needs " in run.all_text() and also in run.all_text()
    assert "{'loss'" not in run.text()


def test_a_merged_model_without_room_is_refused_at_the_start(
    warm: WarmRanks, two_steps: dict[str, Any], disk: Path
) -> None:
    lora = {**two_steps, "lora": True, "lora_r": 1, "save_merged": True}
    fill(disk, weights(two_steps) * 2 // 3)
    run = warm.start(lora, disk / "out")
    assert run.wait(60) == [1]
    assert "the model at the end of the run needs " in run.all_text() and "{'loss'" not in run.text()


def test_a_merged_model_needs_its_own_room_and_little_more(
    warm: WarmRanks, two_steps: dict[str, Any], disk: Path
) -> None:
    fill(disk, 4 << 20)
    warm.start({**two_steps, "lora": True, "lora_r": 1, "save_merged": True}, disk / "out").finish()
    assert (
        weights_of(disk / "out" / "merged").keys() == weights_of(Path(two_steps["model_name_or_path"])).keys()
    )


@pytest.mark.variants("[2]")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_disk_at_the_end_is_waited_for(
    warm: WarmRanks, two_steps: dict[str, Any], disk: Path, ranks: int
) -> None:
    run = start_full(warm, two_steps, disk, ranks)
    run.wait_for(f"{WAITS}10 min, with the weights in memory (--save_patience)")
    assert "warning: " in run.text() and "the model at the end of the run needs " in run.text()
    (disk / "ballast").unlink()
    run.finish()
    assert weights_of(disk / "out").keys() == weights_of(Path(two_steps["model_name_or_path"])).keys()
    assert run.text().count(WAITS) == 1


@pytest.mark.variants("parallel")
@pytest.mark.parametrize("mode", ["parallel", "stream"])
def test_a_disk_that_fills_up_during_the_save_is_waited_for(
    warm: WarmRanks, two_steps: dict[str, Any], disk: Path, mode: str
) -> None:
    run = start_full(warm, two_steps, disk, 2, fault=("others_take_the_room",), save_mode=mode)
    run.wait_for(WAITS)
    assert "No space left on device" in run.text()
    (disk / "ballast").unlink()
    run.finish()


@pytest.mark.variants("[2]")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_ends_the_waiting(
    warm: WarmRanks, two_steps: dict[str, Any], disk: Path, ranks: int
) -> None:
    run = start_full(warm, two_steps, disk, ranks)
    run.wait_for(WAITS)
    run.send(signal.SIGUSR1, 0)
    run.send(signal.SIGTERM, ranks - 1)
    assert run.wait(30) == [143] * ranks
    assert "the model is not saved: no room came" in run.text()


@pytest.mark.variants("[2]")
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_waiting_ends(warm: WarmRanks, two_steps: dict[str, Any], disk: Path, ranks: int) -> None:
    run = start_full(warm, two_steps, disk, ranks, save_patience=2)
    assert run.wait(60) == [1, 3][:ranks]
    assert WAITS in run.text() and "are free; free some space" in run.text(name="err")


def test_what_can_be_spared_goes_before_anybody_waits(tmp_path: Path) -> None:
    """With --load_best_model_at_end and --save_total_limit 1 the last checkpoint."""
    happened: list[str] = []

    def save() -> str:
        happened.append("save")
        if "room" not in happened:
            raise _C.FileError("out: a save needs 2 MiB, 1 MiB are free; free some space")
        return "saved"

    def make_room() -> bool:
        happened.append("room")
        return True

    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    assert LastSaves(args, SignalGuard(), make_room).save("the model", save) == "saved"
    assert happened == ["save", "room", "save"]


def test_a_script_that_saves_elsewhere_needs_no_room(
    warm: WarmRanks, two_steps: dict[str, Any], disk: Path, tmp_path: Path
) -> None:
    fill(disk, weights(two_steps) // 2)
    warm.start(two_steps, disk / "out", fault=("script_saves", str(tmp_path / "elsewhere"))).finish()
    assert (
        weights_of(tmp_path / "elsewhere").keys() == weights_of(Path(two_steps["model_name_or_path"])).keys()
    )


@pytest.mark.variants("[True]")
@pytest.mark.parametrize("merges", [False, True])
def test_a_script_whose_save_fails_on_one_rank_is_not_waited_for(
    warm: WarmRanks, two_steps: dict[str, Any], tmp_path: Path, merges: bool
) -> None:
    lora = {"lora": True, "lora_r": 1, "save_merged": True} if merges else {}
    flags = {**spread(two_steps, 2), **lora}
    run = warm.start(flags, tmp_path / "out", 2, fault=("script_copies_to_full_disk",))
    statuses = run.wait(30)
    assert None not in statuses and statuses[0] == 1
    told = run.text(name="err")
    assert "/backup/model: cannot go on: No space left on device; " in told
    assert "bytes are free there; free some space" in told and "; 0 bytes" not in told
    assert WAITS not in run.text() and "another rank died" not in run.text(0, "err")


def test_another_failure_of_the_save_ends_all_ranks(
    warm: WarmRanks, two_steps: dict[str, Any], tmp_path: Path
) -> None:
    """Every rank says how its attempt ended: none is left in an exchange that another has not joined."""
    fault = ("fail_with", "fastsft.model.model_save:write_small_files", errno.EACCES, [0])
    run = warm.start(spread(two_steps, 2), tmp_path / "out", 2, fault=fault)
    assert run.wait(30) == [1, 3]
    assert "Permission denied" in run.text(0, "err") and "rank 0 failed: " in run.text(1, "err")
    assert WAITS not in run.text() and "another rank died" not in run.all_text()


@pytest.mark.parametrize("place", ["Trainer._keep_paths", "Trainer.upload_saved"])
def test_an_error_outside_the_save_on_one_rank_ends_the_run(
    warm: WarmRanks, two_steps: dict[str, Any], tmp_path: Path, place: str
) -> None:
    """Before it, while the other rank is inside, and in the upload of what is saved."""
    fault = ("fail_with", f"fastsft.trainer.trainer:{place}", errno.ENOSPC, [0])
    run = warm.start(spread(two_steps, 2), tmp_path / "out", 2, fault=fault)
    statuses = run.wait(30)
    assert None not in statuses and statuses[0] == 1
    assert WAITS not in run.text() and "No space left on device" in run.text(0, "err")
