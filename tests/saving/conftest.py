"""A finished run, made once, and a directory in which somebody plants links."""

from pathlib import Path

import pytest

from fastsft import saving
from saving_run import make_trainer
from tiny_models import write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "untied")


@pytest.fixture(scope="session")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps with checkpoints 2, 4 and 6; to be read only."""
    output = tmp_path_factory.mktemp("finished")
    trainer = make_trainer(model, output)
    trainer.train()
    saving.trainer_save_model_safe(trainer)
    return output


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that nobody may touch."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "victim").write_text("mine")
    (folder / "victim").chmod(0o600)
    return folder


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the program under test writes."""
    folder = tmp_path / "watched"
    folder.mkdir()
    return folder
