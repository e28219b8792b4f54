"""A sound model, a copy to break, and the doctor's patient."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from doctor_patient import Patient
from fastsft.cli.demo_model import small_config, write_random_model
from inspected_models import LLAMA


@pytest.fixture(scope="session")
def sound_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "model"
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 24}
    write_random_model(folder, small_config(vocab_size=32000, **sizes))
    for file in LLAMA.iterdir():
        if file.name != "config.json":
            shutil.copy(file, folder)
    return folder


@pytest.fixture
def model(sound_model: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(sound_model, tmp_path / "model"))


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    for name in ("RANK", "WORLD_SIZE", "FASTSFT_NUM_PROCESSES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def patient(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Patient:
    return Patient(model, tmp_path, capsys)
