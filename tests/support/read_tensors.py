"""Watches how many tensors of a model directory are in memory together."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from fastsft.model.stored_weights import StoredWeights


def most_alive(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled while weights are read: after each read, how many of the tensors read so far are still held."""
    seen: list[int] = []
    read: list[weakref.ref[Any]] = []
    original = StoredWeights.read

    def watched(self: StoredWeights, name: str) -> Any:
        tensor = original(self, name)
        read.append(weakref.ref(tensor))
        seen.append(sum(reference() is not None for reference in read))
        return tensor

    monkeypatch.setattr(StoredWeights, "read", watched)
    return seen
