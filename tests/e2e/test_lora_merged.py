"""`--save_merged` when a run is started again: its own merged model is replaced, what is another's is not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e.command_line import TRAINER, tensors
from fastsft.lora.merge import merge_adapter
from fastsft.model.conversion import convert_model
from warm_ranks import WarmRanks

FLAGS: dict[str, Any] = {
    "use_cpu": True, "model_name_or_path": TRAINER / "model_untied",
    "data_path": TRAINER / "data" / "first48.json", "model_max_length": 256, "learning_rate": 5e-3,
    "lr_scheduler_type": "constant", "max_steps": 2, "save_strategy": "steps", "save_steps": 1,
    "report_to": "none", "lora": True, "lora_r": 4, "save_merged": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(warm: WarmRanks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("saved") / "out"
    printed = warm.train(FLAGS, out)
    assert f"merged      {out / 'merged'}\n" in printed and "fastsft merge" not in printed
    return out


@pytest.fixture
def out(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "out"))  # with the times of change


def assert_merged(out: Path, again: Path) -> None:
    """`out / "merged"` is the adapter that is there now, merged."""
    merge_adapter(out, again)
    wanted, found = tensors(again), tensors(out / "merged")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_the_same_command_after_a_crash_at_the_end(warm: WarmRanks, out: Path, tmp_path: Path) -> None:
    """What others put into the folder is kept."""
    (out / "fastsft_finished.json").unlink()
    (out / "merged" / "Modelfile").write_text("FROM here\n")
    (out / "merged" / "config.json").write_text("{}")
    printed = warm.train(FLAGS, out)
    assert_merged(out, tmp_path / "again")
    (aside,) = out.glob("previous-*-merged")
    assert [path.name for path in aside.iterdir()] == ["Modelfile"] and aside.name in printed
    assert not list(out.glob(".fastsft-tmp-*"))


def test_more_steps(warm: WarmRanks, out: Path, tmp_path: Path) -> None:
    """Then without the flag, which leaves an old merged model, and with it again."""
    before = tensors(out / "merged")
    printed = warm.train({**FLAGS, "max_steps": 3}, out)
    assert "step 3/3" in printed
    assert_merged(out, tmp_path / "again")
    after = tensors(out / "merged")
    assert not all(torch.equal(after[name], value) for name, value in before.items())
    printed = warm.train({**FLAGS, "max_steps": 4, "save_merged": False}, out)
    assert f"fastsft merge {out} {out}-merged" in printed
    assert "the adapter merged into it" in warm.train({**FLAGS, "max_steps": 4}, out)
    assert_merged(out, tmp_path / "once more")


def test_a_finished_run_gets_the_merged_model_that_is_not_there(
    warm: WarmRanks, out: Path, tmp_path: Path
) -> None:
    stamp = (out / "merged" / "manifest.json").stat().st_mtime_ns
    printed = warm.train(FLAGS, out)
    assert "this run is finished" in printed and "merged into it" not in printed
    assert (out / "merged" / "manifest.json").stat().st_mtime_ns == stamp
    shutil.rmtree(out / "merged")
    printed = warm.train(FLAGS, out)
    assert "this run is finished" in printed and "merged into it" in printed
    assert_merged(out, tmp_path / "again")


@pytest.mark.parametrize("kind", ["a directory", "a link", "a checkpoint", "the base model"])
def test_what_another_wrote_stays(warm: WarmRanks, kind: str, out: Path, tmp_path: Path) -> None:
    flags, merged = {**FLAGS, "plot_loss": False}, out / "merged"
    (out / "fastsft_finished.json").unlink()
    if kind == "the base model":
        flags["model_name_or_path"], flags["no_resume"] = merged, True
    else:
        merged.rename(tmp_path / "moved")
    if kind == "a directory":
        shutil.copytree(TRAINER / "model_untied", merged)
    elif kind == "a link":
        merged.symlink_to(tmp_path / "moved")
    elif kind == "a checkpoint":
        shutil.copytree(out / "checkpoint-1", merged)
    before = sorted(path.name for path in merged.iterdir())
    run = warm.start(flags, out)
    assert run.wait(60) == [1]
    error = " ".join(run.text(name="err").split())
    wanted = "never overwritten" if kind == "the base model" else "already, and fastsft did not write it"
    assert f"{merged}" in error and wanted in error
    assert sorted(path.name for path in merged.iterdir()) == before


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_model_of_another_command_is_put_aside(
    warm: WarmRanks, is_finished: bool, out: Path, tmp_path: Path
) -> None:
    """`fastsft convert` wrote it where --save_merged writes."""
    if not is_finished:
        (out / "fastsft_finished.json").unlink()
    shutil.rmtree(out / "merged")
    convert_model(TRAINER / "model_untied", out / "merged", None, 5_000_000_000)
    kept = tensors(out / "merged")
    printed = warm.train(FLAGS, out)
    (aside,) = out.glob("previous-*-merged")
    assert aside.name in printed
    found = tensors(aside)
    assert all(torch.equal(found[name], value) for name, value in kept.items())
    assert_merged(out, tmp_path / "again")
    (out / "fastsft_finished.json").unlink()
    warm.train(FLAGS, out)
    assert list(out.glob("previous-*-merged")) == [aside]
