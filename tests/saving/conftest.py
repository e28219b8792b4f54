"""A finished run, made once."""

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
