"""Places of models on a command line: paths, and names of hub models."""

from __future__ import annotations

from pathlib import Path

from fastsft.model.model_config import model_directory
from fastsft.runtime.hub_models import expanded, is_address, local_directory, may_be_hub_name


def model_place(name: str, *, has_code: bool = False) -> Path:
    """Return the path `name`, or the directory of the hub model `name`, downloaded if it is not in the cache.

    has_code: True to download the model's Python files, too (--trust_remote_code). A path that cannot be a
    hub model is returned as it is, also if nothing is there. ValueError if there is no such hub model.
    """
    path = expanded(name)
    if path.exists() or (not may_be_hub_name(name) and not is_address(name)):
        return path
    return local_directory(name, "model") or model_directory(name, has_code=has_code, flag="model")
