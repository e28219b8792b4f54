"""Random states of Python, numpy and torch as JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fastsft.runtime.random_state import RandomState


@pytest.fixture
def other_generator() -> Iterator[None]:
    """numpy's global generator is a PCG64."""
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(5))
    yield
    np.random.set_bit_generator(before)


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.standard_normal()), float(torch.rand(()))


def test_json_brings_the_states_back() -> None:
    np.random.standard_normal()  # keeps a second value for the next call
    saved = json.loads(json.dumps(RandomState.now().to_json()))
    expected = [draw() for _ in range(3)]
    RandomState.from_json(saved).set()
    assert [draw() for _ in range(3)] == expected


@pytest.mark.filterwarnings("ignore:get_state and legacy")
def test_another_generator_of_numpy_is_named(other_generator: None) -> None:
    state = RandomState.now()
    with pytest.raises(ValueError, match=r"set_bit_generator: expected MT19937.*got PCG64"):
        state.to_json()


@pytest.mark.filterwarnings("ignore:get_state and legacy")
def test_another_generator_of_numpy_is_set_again(other_generator: None) -> None:
    state = RandomState.now()
    expected = draw()
    state.set()
    assert draw() == expected
