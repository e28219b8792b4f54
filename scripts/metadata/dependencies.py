"""Run-time dependencies of the wheel; torch is pinned to the minor version that it was built with."""

from __future__ import annotations

import importlib.metadata

RUNTIME = [
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
    major, minor = importlib.metadata.version("torch").split("+")[0].split(".")[:2]
    return [f"torch=={major}.{minor}.*", *RUNTIME]


def get_requires_for_dynamic_metadata(_: object = None) -> list[str]:
    """Torch must be importable when the metadata is made."""
    return ["torch==2.11.*"]
