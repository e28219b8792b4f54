"""Models that the programs train: written by the process that starts them, which has transformers loaded."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from fake_device.cases import Cases
from tiny_models import write_model

FOLDER = tempfile.TemporaryDirectory(prefix="fake_device_models_")


@cache
def model_of(family: str, **sizes: float) -> str:
    name = "_".join([family, *(f"{name}_{size}" for name, size in sizes.items())])
    return str(write_model(Path(FOLDER.name, name), family, **sizes))


def with_models(cases: Cases) -> Cases:
    """Return the cases with the folder of each one's model, as the programs read them."""
    return {
        name: {**case, "model": model_of(case["family"], **case.get("sizes", {}))}
        for name, case in cases.items()
    }
