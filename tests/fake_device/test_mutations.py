"""A wait of the product that is left out is noticed."""

from __future__ import annotations

import pytest

from fake_device.cases import STRATEGIES
from fake_device.models import with_models
from fake_device.mutations import mutate, name_of, symbols

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("wait", ["BatchUpload::~BatchUpload"])
def test_a_wait_that_is_left_out_is_noticed(wait: str) -> None:
    """As `python -m fake_device.mutations` shows for all waits. This one matters after an exception alone."""
    table, name = symbols(), "full_shard bfloat16"
    (case,) = with_models({name: STRATEGIES[name]}).values()
    found = mutate(case, lambda places: [place for place in places if wait in name_of(place, table)])
    assert found and all(found.values())
