"""Model directories, written once."""

from pathlib import Path

import pytest

from native_families import CONFIGS
from saving_run import make_trainer
from tiny_models import write_model


@pytest.fixture(scope="session", params=list(CONFIGS))
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, Path]:
    return {kind: write_model(tmp_path_factory.mktemp(kind), kind) for kind in CONFIGS}


@pytest.fixture
def model(models, kind) -> Path:
    return models[kind]


@pytest.fixture(scope="session")
def finished(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the untied model: checkpoints 2, 4 and 6; to be read only."""
    output = tmp_path_factory.mktemp("finished")
    make_trainer(models["untied"], output).train()
    return output
