"""Run-time dependencies; a wheel's torch is pinned to the minor version that it was built with."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
RUNTIME = [
    "fsspec>=2024.2",
    "huggingface_hub>=0.30",
    "jinja2>=3.1.6",
    "numpy>=1.26",
    "pyyaml>=6",
    "safetensors>=0.5,!=0.8.0rc0",
    "sentencepiece>=0.2.1",
    "tokenizers>=0.20",
    "tqdm>=4.66",
]


class Provider:
    """What scikit-build-core asks for `project.dependencies`."""

    def __init__(self) -> None:
        self._state = ""

    def build_state(self, state: str) -> None:
        self._state = state

    def dynamic_metadata(self, settings: Mapping[str, Any], project: object = None) -> dict[str, list[str]]:
        """A wheel asks for the torch that it was built with; sources are for the whole range."""
        if settings:
            raise ValueError(f"expected no settings, got {dict(settings)!r}; see pyproject.toml")
        versions = _versions()
        if self._state == "sdist":
            return {"dependencies": [versions["torch_requirement"](), *RUNTIME]}
        installed = _installed_torch()
        if installed is None:
            raise ValueError(f"torch is not installed: pip install '{versions['torch_requirement']()}'")
        if (problem := versions["torch_problem"](installed.version)) is not None:
            raise ValueError(problem)
        return {"dependencies": [f"torch=={versions['minor_version'](installed.version)}.*", *RUNTIME]}

    def dynamic_wheel(self, settings: object) -> dict[str, bool]:
        """Names what may differ between the sources and a wheel."""
        return {"dependencies": True}

    def get_requires_for_dynamic_metadata(self, settings: object = None) -> list[str]:
        """Nothing where a torch of the range is installed; else the release for an isolated build."""
        versions = _versions()
        installed = _installed_torch()
        if installed is not None and versions["torch_problem"](installed.version) is None:
            return []
        return [f"torch=={versions['TORCH_ISOLATED']}.*"]


def _installed_torch() -> Any:
    return runpy.run_path(str(Path(__file__).with_name("installed_torch.py")))["installed_torch"]()


def _versions() -> dict[str, Any]:
    """The range of releases, without an import of fastsft, whose core is not there yet."""
    return runpy.run_path(str(_ROOT / "python" / "fastsft" / "runtime" / "versions.py"))
