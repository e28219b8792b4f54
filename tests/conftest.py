"""Fixtures that every folder of tests may use."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def golden():
    """The folder of recorded runs and outputs of the original libraries."""
    return Path(__file__).parent / "golden"
