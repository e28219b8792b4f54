"""A wait of the product that is left out is noticed."""

from __future__ import annotations

from typing import Any

import pytest

from fake_device.models import with_models
from fake_device.mutations import CASES, mutate, name_of, symbols

pytestmark = pytest.mark.chaos
# Waits that matter after an exception alone: the case that has them, and how it is played.
WAITS: dict[str, tuple[str, dict[str, Any]]] = {
    "BatchUpload::~BatchUpload": ("full_shard bfloat16", {}),
    "OffloadedStates::~OffloadedStates": ("shard_grad_op offload", {"parts": ["broken off"], "every": 2}),
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_that_is_left_out_is_noticed(wait: str) -> None:
    """As `python -m fake_device.mutations` shows for all waits."""
    table, (name, played) = symbols(), WAITS[wait]
    (case,) = with_models({name: CASES[name]}).values()
    found = mutate(case, lambda places: [each for each in places if wait in name_of(each, table)], **played)
    assert found and all(found.values())
