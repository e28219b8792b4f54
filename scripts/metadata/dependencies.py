"""Run-time dependencies of the wheel; torch is pinned to the minor version that it was built with."""

from __future__ import annotations

import runpy
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


def __dir__() -> list[str]:
    return ["dynamic_metadata", "get_requires_for_dynamic_metadata"]


def dynamic_metadata(field: str, settings: dict[str, object] | None = None, *_: object) -> list[str]:
    """The value of `project.dependencies`."""
    if field != "dependencies" or settings:
        raise ValueError(
            f"expected the field 'dependencies' without settings, got {field!r} with {settings!r}"
        )
    versions = _versions()
    installed = _installed_torch()
    if installed is None:
        raise ValueError(f"torch is not installed: pip install '{versions['torch_requirement']()}'")
    if (problem := versions["torch_problem"](installed.version)) is not None:
        raise ValueError(problem)
    return [f"torch=={versions['minor_version'](installed.version)}.*", *RUNTIME]


def get_requires_for_dynamic_metadata(_: object = None) -> list[str]:
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
