"""A real disk fills up at twenty points of a save, through the page cache (tmpfs) and past it (ext4).

docs/spec/reliability.md, row R8.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fastsft import saving
from fastsft.checkpoint import saver as checkpoint_saver
from saving_run import make_trainer
from small_disks import KINDS, fill, small_disk, why_not
from tiny_models import weights_of

MEGABYTES = 96
SAVE = 40 << 20  # bytes of a checkpoint, about: two of them fit
POINTS = [SAVE * part // 21 for part in range(20)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2.5 million parameters, so that each file of a checkpoint is larger than what is held back."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4
    )
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    reason = why_not(request.param, tmp_path / "probe")
    if reason:
        pytest.skip(reason)
    with small_disk(request.param, tmp_path, MEGABYTES) as place:
        yield place


def check_full(model: Path, disk: Path, points: list[int], *, behind: bool) -> None:
    """The older checkpoint stays whole, the newer is not there; with room made it is."""
    trainer = make_trainer(model, disk / "out", async_save=behind, save_total_limit=1)
    first, second = disk / "out" / "checkpoint-1", disk / "out" / "checkpoint-2"
    saving.save_checkpoint(trainer, first)
    before = weights_of(first)
    for left in points:
        ballast = fill(disk, left)
        with pytest.raises(RuntimeError, match=r"No space left on device.* \d+ bytes .*save needs \d+ bytes"):
            saving.save_checkpoint(trainer, second)
        assert [path.name for path in (disk / "out").iterdir() if "checkpoint" in path.name] == [first.name]
        assert saving.newest_checkpoint(disk / "out") == str(first)
        ballast.unlink()
    after = weights_of(first)
    assert after.keys() == before.keys() and all(after[name].equal(before[name]) for name in before)
    saving.load_checkpoint(trainer, first)
    saving.save_checkpoint(trainer, second)
    assert saving.newest_checkpoint(disk / "out") == str(second)


def others_take_the_room(patched: pytest.MonkeyPatch) -> None:
    """What the check before a save saw is gone when it writes."""
    patched.setattr(checkpoint_saver, "check_free_space", lambda *_: None)


def test_a_disk_that_fills_up_during_a_save(model: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others_take_the_room(monkeypatch)
    check_full(model, disk, POINTS[7:8], behind=True)


@pytest.mark.chaos
@pytest.mark.parametrize("behind", [True, False])
def test_twenty_points(model: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, behind: bool) -> None:
    others_take_the_room(monkeypatch)
    check_full(model, disk, POINTS, behind=behind)


def test_what_cannot_fit_is_refused_before_anything_is_written(model: Path, disk: Path) -> None:
    trainer = make_trainer(model, disk / "out")
    (disk / "out").mkdir(exist_ok=True)
    fill(disk, SAVE // 2)
    with pytest.raises(RuntimeError, match=r"a save needs .* MiB, .* are free"):
        saving.save_checkpoint(trainer, disk / "out" / "checkpoint-1")
    assert [path.name for path in (disk / "out").iterdir() if "checkpoint" in path.name] == []
