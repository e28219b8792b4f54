"""Marks of tests that hold for some releases of transformers."""

from __future__ import annotations

import pytest
import transformers

MAJOR = int(transformers.__version__.split(".")[0])


def of_release_4(reason: str) -> pytest.MarkDecorator:
    """Skipped under transformers 5. reason: what differs there."""
    return pytest.mark.skipif(MAJOR >= 5, reason=f"transformers {transformers.__version__}: {reason}")
