"""Checkpoints that must not be resumed by mistake are put aside, under another name."""

from fastsft import _C, saving
from fastsft.trainer.resume import roll_back
from saved_runs import OPTIMIZER, copy
from saving_run import make_trainer


def test_checkpoints_of_another_run_are_put_aside(finished, model, tmp_path, capsys):
    output = copy(finished, tmp_path, 2, 6)
    (output / "checkpoint-best").mkdir()
    for _ in range(2):  # twice within a second: names stay different
        saving.archive_checkpoints(output)
        assert _C.list_checkpoints(str(output)) == [] and saving.newest_checkpoint(output) is None
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(f"--no_resume: checkpoint-2, checkpoint-6 in {output} are now called ")
        copy(finished, tmp_path, 2, 6)
    aside = sorted(path.name for path in output.glob("previous-*"))
    trainer = make_trainer(model, tmp_path)
    assert [saving.load_checkpoint(trainer, output / name)["step"] for name in aside] == [2, 6, 2, 6]
    assert (output / "checkpoint-best").is_dir()


def test_those_of_an_abandoned_way_are_put_aside(finished, model, tmp_path, capsys):
    """Resumed by name from an older one: the next automatic resume must not take the newer ones."""
    output = copy(finished, tmp_path, 2, 4, 6)
    (output / "checkpoint-9").mkdir()  # of another program
    trainer = make_trainer(model, output, save_strategy="no")
    trainer.train(resume_from_checkpoint=str(output / "checkpoint-2"))
    assert _C.list_checkpoints(str(output)) == ["checkpoint-2", "checkpoint-9"]
    (line,) = [text for text in capsys.readouterr().out.splitlines() if "are now called" in text]
    assert line.startswith(f"going on from {output / 'checkpoint-2'}: checkpoint-4, checkpoint-6 in {output}")
    assert saving.newest_checkpoint(output) == str(output / "checkpoint-2")
    aside = sorted(output.glob("previous-*-checkpoint-*"))
    assert [_C.verify_directory(str(path)) for path in aside] == [[], []]
    make_trainer(model, output, save_strategy="no").train(resume_from_checkpoint=str(aside[0]))
    assert _C.list_checkpoints(str(output)) == ["checkpoint-9"]  # step 2 is of another way, too


def test_an_automatic_resume_puts_nothing_aside(finished, model, tmp_path):
    output = copy(finished, tmp_path, 2, 4)
    damaged = output / "checkpoint-4" / OPTIMIZER
    damaged.write_bytes(damaged.read_bytes()[:-1])
    make_trainer(model, output, save_strategy="no").train(resume_from_checkpoint=True)
    assert _C.list_checkpoints(str(output)) == ["checkpoint-2", "checkpoint-4"]


def test_a_fresh_start_puts_those_of_the_run_before_aside(finished, model, tmp_path):
    """Trainer.train() without a checkpoint: the next automatic resume is of this run, not of the other."""
    output = copy(finished, tmp_path, 4, 6)
    (output / "checkpoint-9").mkdir()  # of another program
    make_trainer(model, output, max_steps=2, save_total_limit=2).train()
    assert _C.list_checkpoints(str(output)) == ["checkpoint-2", "checkpoint-9"]
    aside = sorted(output.glob("previous-*-checkpoint-*"))
    assert [path.name[-12:] for path in aside] == ["checkpoint-4", "checkpoint-6"]
    assert [_C.verify_directory(str(path)) for path in aside] == [[], []]


def test_a_roll_back_puts_aside_what_came_after(finished, model, tmp_path):
    trainer = make_trainer(model, copy(finished, tmp_path, 2, 4, 6))
    assert roll_back(trainer._run, 4) == str(tmp_path / "checkpoint-2")
    assert trainer.state.global_step == 2 and _C.list_checkpoints(str(tmp_path)) == ["checkpoint-2"]


def test_only_our_checkpoints_go_with_the_best(finished, tmp_path):
    """--load_best_model_at_end with --save_total_limit 1, in a directory that others write to."""
    output = copy(finished, tmp_path, 2, 4, 6)
    for name in ("checkpoint-1", "checkpoint-9"):
        (output / name).mkdir()
        (output / name / "pytorch_model.bin").write_bytes(b"mine")
    saving.keep_only(output / "checkpoint-4")
    assert _C.list_checkpoints(str(output)) == ["checkpoint-1", "checkpoint-4", "checkpoint-9"]


def test_nothing_to_put_aside(tmp_path, capsys):
    saving.archive_checkpoints(tmp_path / "missing")
    saving.archive_checkpoints(tmp_path)
    assert not list(tmp_path.iterdir()) and capsys.readouterr().out == ""
