"""The Pythons that have other frameworks, for tests that run them."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

from fastsft.inspection.against.frameworks import FRAMEWORKS


def python_of(name: str) -> str:
    """The Python that has a framework: named by FASTSFT_AGAINST_TRL and so on, else this one if it has it."""
    named = os.environ.get(f"FASTSFT_AGAINST_{name.upper()}")
    if named:
        return named
    if importlib.util.find_spec(FRAMEWORKS[name].module) is None:
        pytest.skip(
            f"{FRAMEWORKS[name].title} is not installed; FASTSFT_AGAINST_{name.upper()} may name its Python"
        )
    return sys.executable
