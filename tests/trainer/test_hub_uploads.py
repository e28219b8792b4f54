"""--push_to_hub through huggingface_hub, whose calls are recorded; every call must fit its real signature."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import huggingface_hub
import pytest
from peft import LoraConfig

from fastsft.trainer import Trainer, hub_uploads
from saving_run import make_trainer
from tiny_models import write_model


class Hub:
    """A fake server, which records the files of each upload."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.created: dict[str, Any] = {}
        self.uploads: list[tuple[str, set[str], dict[str, Any]]] = []
        self.fails: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.tokens: list[Any] = []
        api = mock.create_autospec(huggingface_hub.HfApi, instance=True)
        api.create_repo.side_effect = self._create
        api.upload_folder.side_effect = self._upload
        self.api = api

        def make(token: str | None = None) -> Any:
            self.tokens.append(token)
            return api

        monkeypatch.setattr(huggingface_hub, "HfApi", make)

    def _create(self, repo_id: str, **given: Any) -> Any:
        if self.fails:
            raise self.fails
        self.created = {"repo_id": repo_id, **given}
        return mock.Mock(repo_id=f"me/{repo_id}")

    def _upload(
        self, *, folder_path: str, commit_message: str, ignore_patterns: list[str], **given: Any
    ) -> str:
        assert self.gate.wait(60)
        if self.fails:
            raise self.fails
        paths = [
            str(path.relative_to(folder_path)) for path in Path(folder_path).rglob("*") if path.is_file()
        ]
        kept = huggingface_hub.utils.filter_repo_objects(paths, ignore_patterns=ignore_patterns)
        self.uploads.append((commit_message, set(kept), given))
        return "commit"

    def messages(self) -> list[str]:
        return [message for message, _, _ in self.uploads]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("hub") / "model", "untied")


MODEL = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer_config.json",
    "training_args.json",
}


def run(model: Path, output: Path, **flags: Any) -> Trainer:
    trainer = make_trainer(model, output, push_to_hub=True, num_train_epochs=2, **flags)
    trainer.train()
    return trainer


def test_every_save_and_the_end(hub: Hub, model: Path, tmp_path: Path) -> None:
    trainer = run(model, tmp_path / "mine", hub_token="secret", hub_private_repo=True, hub_revision="dev")
    trainer.save_model()
    assert hub.created == {"repo_id": "mine", "private": True, "exist_ok": True}
    hub.api.create_branch.assert_called_once_with("me/mine", branch="dev", exist_ok=True)
    assert hub.messages() == [
        "Training in progress, step 2", "Training in progress, step 4", "Model save",
    ]  # fmt: skip
    for message, files, given in hub.uploads:
        assert files >= MODEL and not [name for name in files if "optimizer" in name or "random" in name]
        assert "manifest.json" not in files and "fastsft_state.json" not in files
        assert ("README.md" in files) == (message == "Model save")
        assert given == {"repo_id": "me/mine", "revision": "dev"}
    assert set(hub.tokens) == {"secret"}
    assert not list((tmp_path / "mine").glob(".upload-*"))
    assert json.loads((tmp_path / "mine" / "training_args.json").read_text())["hub_token"] == "<HUB_TOKEN>"


def test_only_the_end(hub: Hub, model: Path, tmp_path: Path) -> None:
    trainer = run(model, tmp_path / "mine", hub_strategy="end", hub_model_id="us/theirs")
    assert hub.uploads == [] and hub.created["repo_id"] == "us/theirs"
    assert trainer.push_to_hub("done") == "commit"
    assert hub.messages() == ["done"] and (tmp_path / "mine" / "model.safetensors").is_file()


def test_a_checkpoint_may_be_rotated_away_meanwhile(hub: Hub, model: Path, tmp_path: Path) -> None:
    hub.gate.clear()
    trainer = run(model, tmp_path, save_steps=1, save_total_limit=1, hub_always_push=True)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]
    hub.gate.set()
    trainer.uploads.wait()
    assert hub.messages() == [f"Training in progress, step {step}" for step in (1, 2, 3, 4)]
    assert all(files >= MODEL for _, files, _ in hub.uploads)


def test_one_save_waits_for_a_slow_upload(
    hub: Hub, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the newest save waits. The saves before it are cancelled with a line, and take no disk space."""
    hub.gate.clear()
    trainer = run(model, tmp_path, save_steps=1, save_total_limit=1)
    assert len(list(tmp_path.glob(".upload-*"))) == 2
    hub.gate.set()
    trainer.uploads.wait()
    assert hub.messages() == ["Training in progress, step 1", "Training in progress, step 4"]
    assert [line for line in capsys.readouterr().out.splitlines() if "not uploaded" in line] == [
        f"--push_to_hub: Training in progress, step {step}: not uploaded, as step {step + 1} was saved while "
        "the upload before was under way (--hub_always_push True uploads every save)"
        for step in (2, 3)
    ]
    assert not list(tmp_path.glob(".upload-*"))


@pytest.mark.parametrize("failing", [["mkdtemp"], ["link", "fresh_file"]])
def test_a_checkpoint_that_cannot_be_linked_ends_no_run(
    hub: Hub,
    model: Path,
    tmp_path: Path,
    failing: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trainer = make_trainer(model, tmp_path, push_to_hub=True, num_train_epochs=1)
    for module, name in ((tempfile, "mkdtemp"), (os, "link"), (hub_uploads, "fresh_file")):
        if name in failing:
            monkeypatch.setattr(module, name, full_for_uploads(getattr(module, name)))
    trainer.train()
    assert "step 2: not uploaded: [Errno 28] No space left on device" in capsys.readouterr().out
    assert hub.uploads == [] and not list(tmp_path.glob(".upload-*"))
    assert (tmp_path / "checkpoint-2" / "model.safetensors").is_file()


def full_for_uploads(call: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*given: Any, **named: Any) -> Any:
        if ".upload-" in f"{given} {named}":
            raise OSError(28, "No space left on device")
        return call(*given, **named)

    return checked


def test_a_server_that_is_away_ends_no_run(
    hub: Hub, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(model, tmp_path, push_to_hub=True, num_train_epochs=2)
    hub.fails = OSError("no route\nto host")
    trainer.train()
    with pytest.raises(
        RuntimeError, match=r"is saved, but not uploaded: no route; `hf upload me/.*tries again"
    ):
        trainer.save_model()
    assert "Training in progress, step 2: not uploaded: no route" in capsys.readouterr().out
    assert (tmp_path / "model.safetensors").is_file() and not list(tmp_path.glob(".upload-*"))


def test_no_access_is_told_at_the_start(hub: Hub, model: Path, tmp_path: Path) -> None:
    hub.fails = OSError("401 Client Error")
    with pytest.raises(ValueError, match=r"cannot be made or written: 401 Client Error; log in"):
        make_trainer(model, tmp_path, push_to_hub=True)
    with pytest.raises(ValueError, match="expected --push_to_hub True"):
        make_trainer(model, tmp_path).push_to_hub()


def test_the_card_names_what_the_model_was_made_of(hub: Hub, model: Path, tmp_path: Path) -> None:
    trainer = run(model, tmp_path / "mine")
    trainer.model.source_directory = Path("/cache/models--us--base-7b/snapshots/abc")
    trainer.uploads.model(str(tmp_path / "mine"), "x")
    card = huggingface_hub.ModelCard.load(tmp_path / "mine" / "README.md")
    assert card.data.base_model == "us/base-7b" and card.data.library_name == "transformers"
    assert "| learning_rate | 0.01 |" in card.text and "| 4 | " in card.text
    (tmp_path / "mine" / "README.md").write_text("my own words")
    trainer.uploads.model(str(tmp_path / "mine"), "x")
    assert (tmp_path / "mine" / "README.md").read_text() == "my own words"


def test_an_adapter_alone_is_uploaded(hub: Hub, model: Path, tmp_path: Path) -> None:
    """An upload has peft's two files and the tokenizer; the card names peft as the library."""
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], r=2)
    trainer = make_trainer(model, tmp_path / "mine", push_to_hub=True, num_train_epochs=1, peft_config=config)
    trainer.train()
    trainer.save_model()
    assert hub.messages() == ["Training in progress, step 2", "Model save"]
    for _, files, _ in hub.uploads:
        assert files >= {"adapter_model.safetensors", "adapter_config.json", "tokenizer_config.json"}
        assert not files & {"model.safetensors", "config.json", "generation_config.json"}
        assert not [name for name in files if "optimizer" in name or "random" in name]
    assert "library_name: peft" in (tmp_path / "mine" / "README.md").read_text()
