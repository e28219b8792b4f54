"""Saves that fail leave the old checkpoint as it was, and nothing else."""

import resource
from types import SimpleNamespace

import pytest

from fastsft import saving
from fastsft.checkpoint import content as checkpoint_content
from fastsft.checkpoint import save
from saving_run import make_trainer


@pytest.mark.parametrize("broken", ["write_texts", "write_tokenizer", "read_random_states", "describe_run"])
def test_a_failed_save_leaves_nothing(model, tmp_path, monkeypatch, broken):
    trainer = make_trainer(model, tmp_path)

    def fail(*_):
        raise RuntimeError("the disk is full")

    saving.save_checkpoint(trainer, tmp_path / "checkpoint-1")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_content, broken, fail)
        with pytest.raises(RuntimeError, match="the disk is full"):
            saving.save_checkpoint(trainer, tmp_path / "checkpoint-2")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    saving.save_checkpoint(trainer, tmp_path / "checkpoint-2")
    assert saving.newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")


def test_a_checkpoint_without_its_weights_is_no_checkpoint(model, tmp_path, monkeypatch):
    """Whatever the cause: what is not in the manifest must not take the place of an older checkpoint."""
    trainer = make_trainer(model, tmp_path)
    trainer.args.save_total_limit = 1
    saving.save_checkpoint(trainer, tmp_path / "checkpoint-1")
    written = save.joined_digests

    def without_tensors(reports):
        return [each for each in written(reports) if not each.name.endswith(".safetensors")]

    monkeypatch.setattr(save, "joined_digests", without_tensors)
    lacks = "lacks model.safetensors, optimizer-rank-.*.safetensors, which no rank has written"
    with pytest.raises(RuntimeError, match=lacks):
        saving.save_checkpoint(trainer, tmp_path / "checkpoint-2")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]


@pytest.mark.parametrize(
    ("names", "lacks"),
    [
        (["model-00001-of-00002", "optimizer-rank-00000-of-00001"], "1 of 2 files model-"),
        (["model", "optimizer-rank-00001-of-00003"], "2 of 3 files optimizer-rank-"),
        (["adapter_model", "optimizer-rank-00000-of-00001"], "lacks model.safetensors"),
        (["model-00001-of-00002", "model-00002-of-00002"], "lacks optimizer-rank"),
    ],
)  # fmt: skip
def test_all_parts_of_a_checkpoint_are_there(names, lacks):
    content = SimpleNamespace(adapter=None, with_state=True)
    with pytest.raises(RuntimeError, match=lacks):
        checkpoint_content.check_complete(content, [f"{name}.safetensors" for name in names])


def test_leftovers_of_a_crash_go_with_the_next_save(model, tmp_path, capsys):
    leftover = tmp_path / ".fastsft-tmp-1-0123456789abcdef"
    leftover.mkdir()
    (leftover / ".fastsft-owner").write_text("")
    (leftover / "model.safetensors").write_bytes(b"half")
    saving.save_checkpoint(make_trainer(model, tmp_path), tmp_path / "checkpoint-1")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    assert leftover.name in capsys.readouterr().out


FULL_AT = [
    *(0, 1, 7, 100, 300, 500, 800, 1_000, 1_500, 2_000),
    *(3_000, 5_000, 8_000, 20_000, 40_000, 60_000, 80_000, 100_000, 120_000, 150_000),
]


@pytest.mark.parametrize("limit", FULL_AT)
def test_a_full_disk_leaves_the_old_checkpoint(model, tmp_path, limit):
    """A limit on file sizes stands for a disk that fills up in the middle of any file."""
    trainer = make_trainer(model, tmp_path)
    saving.save_checkpoint(trainer, tmp_path / "checkpoint-1")
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        said = r"\.fastsft-.*File too large; the file would be larger than `ulimit -f`.*save needs \d+ bytes"
        with pytest.raises(RuntimeError, match=said if limit else ".fastsft-"):
            saving.save_checkpoint(trainer, tmp_path / "checkpoint-2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    assert saving.newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1")
    saving.save_checkpoint(trainer, tmp_path / "checkpoint-2")
    assert saving.newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
