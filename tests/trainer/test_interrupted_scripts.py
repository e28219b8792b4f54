"""Ctrl-C in a script's train(), and files that a script's callback puts next to a checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers.integrations import integration_utils

from called_back_run import hear_of_saves, interrupt_with_a_full_disk
from fastsft.checkpoint import save, saver
from fastsft.runtime import interactive as place
from ranks import run_ranks
from trainer_pairs import Plain, ours, theirs


class Hit(transformers.TrainerCallback):
    """Sends the SIGINT of a Ctrl-C after step 2."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGINT)


class Notes(transformers.TrainerCallback):
    """Writes files into each checkpoint, as scripts do that save adapters or notes there."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        (folder / "note.json").write_text(json.dumps({"step": state.global_step}))
        (folder / "adapter").mkdir()
        (folder / "adapter" / "part.bin").write_bytes(b"x")


def full_disk(monkeypatch: pytest.MonkeyPatch, step: int) -> list[str]:
    """Let the commit of the checkpoint of `step` fail; return a list that gets the names of all attempts."""
    tried: list[str] = []
    commit = save.commit_checkpoint

    def refuse(directory: Any, target: Path, *rest: Any) -> Any:
        tried.append(Path(target).name)
        if Path(target).name == f"checkpoint-{step}":
            raise OSError(28, "No space left on device")
        return commit(directory, target, *rest)

    monkeypatch.setattr(save, "commit_checkpoint", refuse)
    monkeypatch.setattr(saver, "commit_checkpoint", refuse)
    return tried


def weights(module: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def interrupted(tmp_path: Path) -> Any:
    trainer = ours(tmp_path, Plain(16), max_steps=6, save_strategy="no")
    trainer.add_callback(Hit())
    return trainer


def test_a_script_catches_the_interrupt_and_has_the_weights(tmp_path: Path) -> None:
    trainer = interrupted(tmp_path)
    module, before = trainer.model.module, weights(trainer.model.module)
    with pytest.raises(KeyboardInterrupt, match=r"checkpoint-2; the same command resumes"):
        trainer.train()
    saved, now = load_file(tmp_path / "checkpoint-2" / "model.safetensors"), weights(module)
    assert saved
    assert all(torch.equal(now[name], value) for name, value in saved.items())
    assert any(not torch.equal(now[name], before[name]) for name in saved)
    trainer.save_model(str(tmp_path / "kept"))
    kept = load_file(tmp_path / "kept" / "model.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in saved.items())


def test_the_run_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    whole = ours(tmp_path / "whole", Plain(16), max_steps=6, save_strategy="no")
    whole.train()
    trainer = interrupted(tmp_path / "parts")
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.remove_callback(Hit)
    trainer.train(resume_from_checkpoint=True)
    expected, found = weights(whole.model.module), weights(trainer.model.module)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_an_interrupt_that_nobody_catches_ends_quietly(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        interrupted(tmp_path).train()
    assert left.value.code == 130


def seen(shell: object = None, interactive: int = 0, **more: object) -> Any:
    """Make a fake `sys` module of a Python session, or of IPython with `shell`."""
    modules = {"IPython": SimpleNamespace(get_ipython=lambda: shell)}
    return SimpleNamespace(flags=SimpleNamespace(interactive=interactive), modules=modules, **more)


PROMPTS = {
    "python": seen(ps1=">>> "),
    "python -i": seen(interactive=1),
    "ipython": seen(SimpleNamespace()),
    "notebook": seen(SimpleNamespace(kernel=object())),
}


@pytest.mark.parametrize("prompt", PROMPTS)
def test_an_interrupt_does_not_close_a_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompt: str
) -> None:
    """A SystemExit would end Python's prompt, and IPython would show it with advice on leaving the kernel."""
    monkeypatch.setattr(place, "sys", PROMPTS[prompt])
    assert place.is_interactive()
    assert place.is_notebook() == (prompt == "notebook")
    with pytest.raises(KeyboardInterrupt, match=r"checkpoint-2; the same command resumes") as left:
        interrupted(tmp_path).train()
    assert not isinstance(left.value, SystemExit)


def test_a_script_has_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "sys", seen())
    assert not place.is_interactive() and not place.is_notebook()


LINES = """
import os, signal, transformers
from trainer_pairs import Plain, ours
class Hit(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 2: os.kill(os.getpid(), signal.SIGINT)

trainer = ours({output!r}, Plain(16), max_steps=6, save_strategy="no")
trainer.add_callback(Hit())
trainer.train()
print("still", "here")
exit()
"""


@pytest.mark.thorough
def test_the_prompt_of_python_goes_on(tmp_path: Path) -> None:
    paths = os.pathsep.join(path for path in sys.path if path)
    lines = LINES.format(output=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-q", "-i"], input=lines, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert "still here" in done.stdout and done.returncode == 0, done.stderr
    assert "KeyboardInterrupt: " in done.stderr and "resumes from it" in done.stderr


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_an_interrupt_with_a_full_disk_keeps_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, behind: bool
) -> None:
    full_disk(monkeypatch, 2)
    trainer = ours(
        tmp_path, Plain(16), max_steps=6, save_strategy="no", on_save_error=policy, async_save=behind
    )
    trainer.add_callback(Hit())
    before = weights(trainer.model.module)
    with pytest.raises(KeyboardInterrupt, match=r"checkpoint-2 (could not be|was not) saved") as left:
        trainer.train()
    if policy == "stop":
        assert "No space left on device" in str(left.value)
        assert isinstance(left.value.__cause__, OSError)
    now = weights(trainer.model.module)
    assert any(not torch.equal(now[name], before[name]) for name in now)
    assert all(torch.equal(now[name], value) for name, value in trainer.engine.named_parameters().items())


@pytest.mark.parametrize("fsdp", ["", "full_shard"])
def test_ranks_with_a_full_disk_keep_the_weights(tmp_path: Path, fsdp: str) -> None:
    first, second = run_ranks(2, interrupt_with_a_full_disk, tmp_path, fsdp, launched=True, seconds=60)
    assert first["moved"] and second["moved"]
    assert "checkpoint-2 could not be saved" in first["said"] and "No space left" in first["said"]
    assert "checkpoint-2 could not be saved" in second["said"] and "No space left" in second["said"]


class Failing(Hit):
    """A script's callback with a mistake in on_save."""

    def on_save(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("a mistake of the script")


def test_a_mistake_in_a_callback_is_not_a_save_that_failed(tmp_path: Path) -> None:
    trainer = ours(tmp_path, Plain(16), max_steps=6, save_strategy="no")
    trainer.add_callback(Failing())
    before = weights(trainer.model.module)
    with pytest.raises(RuntimeError, match="a mistake of the script"):
        trainer.train()
    assert any(not torch.equal(value, before[name]) for name, value in weights(trainer.model.module).items())


class Impatient(Hit):
    """Sends a second Ctrl-C while the checkpoint is saved."""

    def on_save(self, *_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_a_second_interrupt_keeps_the_weights(tmp_path: Path) -> None:
    trainer = ours(tmp_path, Plain(16), max_steps=6, save_strategy="no")
    trainer.add_callback(Impatient())
    before = weights(trainer.model.module)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert any(not torch.equal(value, before[name]) for name, value in weights(trainer.model.module).items())


@pytest.mark.parametrize("side", [ours, theirs])
def test_files_of_a_callback_stay_in_their_checkpoint(tmp_path: Path, side: Any) -> None:
    trainer = side(tmp_path, Plain(16), max_steps=6, save_strategy="steps", save_steps=2)
    trainer.add_callback(Notes())
    trainer.train()
    for step in (2, 4, 6):
        folder = tmp_path / f"checkpoint-{step}"
        assert json.loads((folder / "note.json").read_text()) == {"step": step}
        assert (folder / "adapter" / "part.bin").is_file()
        assert (folder / "model.safetensors").is_file()
    assert not list(tmp_path.glob("previous-*"))


@pytest.mark.parametrize("behind", [True, False])
def test_a_callback_does_not_hear_of_a_checkpoint_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    tried = full_disk(monkeypatch, 4)
    trainer = ours(
        tmp_path, Plain(8), max_steps=6, num_train_epochs=3, save_strategy="steps", save_steps=2,
        on_save_error="continue", async_save=behind,
    )  # fmt: skip
    trainer.add_callback(Notes())
    trainer.train()
    assert trainer.state.global_step == 6
    assert tried == [
        "checkpoint-2",
        "checkpoint-4",
        "checkpoint-6",
    ]  # the second once, at the epoch's end too
    assert {path.parent.name for path in tmp_path.glob("*/note.json")} == {"checkpoint-2", "checkpoint-6"}


class Uploads:
    """MLflow's module, for transformers' callback."""

    class PythonModel:
        """Of a checkpoint."""

    def __init__(self) -> None:
        self.pyfunc, self.logged = self, []

    def log_model(self, name: str, artifacts: dict[str, str], **_: Any) -> None:
        self.logged.append((name, (Path(artifacts["model_path"]) / "model.safetensors").is_file()))


@pytest.mark.parametrize("side", [ours, theirs])
def test_trackers_of_transformers_find_the_checkpoint(tmp_path: Path, side: Any) -> None:
    class Tracker(integration_utils.MLflowCallback):
        def __init__(self) -> None:
            self._ml_flow, self._initialized, self._log_artifacts = Uploads(), True, True
            self._auto_end_run = False

        setup = on_log = on_train_begin = on_train_end = transformers.TrainerCallback.on_log

    trainer = side(tmp_path, Plain(16), max_steps=4, save_strategy="steps", save_steps=2)
    tracker = Tracker()
    trainer.add_callback(tracker)
    trainer.train()
    assert tracker._ml_flow.logged == [("checkpoint-2", True), ("checkpoint-4", True)]


def test_an_on_save_of_one_rank_alone(tmp_path: Path) -> None:
    assert run_ranks(2, hear_of_saves, tmp_path, launched=True, seconds=60) == [[True] * 3, []]


class Silent(transformers.TrainerCallback):
    """Has no `on_save`."""


def test_without_such_a_callback_nothing_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = ours(tmp_path, Plain(16), max_steps=4, save_strategy="steps", save_steps=2)
    trainer.add_callback(Silent())
    trainer.add_callback(transformers.PrinterCallback())
    waits: list[int] = []
    fire = trainer.callback_handler.fire

    def noted(event: str, **how: Any) -> None:
        if event == "on_save":
            waits.append(trainer._run.checkpoints.saver.in_flight)
        fire(event, **how)

    monkeypatch.setattr(trainer.callback_handler, "fire", noted)
    trainer.train()
    assert waits == [True, True]
