"""What backward computes again is chosen by size, and the bytes it is chosen by are the engine's."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fastsft import _C
from fastsft.cli.random_model import small_config
from fastsft.recompute import activation_bytes, choose_recompute

CONFIG = small_config(vocab_size=512, hidden_size=64, num_layers=6, num_heads=4, intermediate_size=172)
TOKENS = 900


def activations(recompute: str) -> int:
    engine = _C.Engine(json.dumps(CONFIG), recompute=recompute)
    dataset = _C.TokenDataset()
    dataset.append(np.arange(TOKENS + 1, dtype=np.int32) % 500, [(1, TOKENS + 1)])
    engine.gradients(dataset, np.zeros(1, dtype=np.int64), np.ones(1))
    return int(engine.memory()["activations"])


def test_the_estimate_is_what_blocks_keep() -> None:
    one_layer = activation_bytes({**CONFIG, "num_hidden_layers": 1}, TOKENS, 4)
    shared = activations("block") - one_layer  # stream inputs of all layers and what blocks share
    kept = activations("selective") - shared
    assert kept == pytest.approx(activation_bytes(CONFIG, TOKENS, 4), rel=0.1)


def test_each_policy_keeps_less_than_the_one_before() -> None:
    selective, gate_up, block = (activations(name) for name in ("selective", "gate_up", "block"))
    assert gate_up < 0.75 * selective and block < 0.75 * gate_up


@pytest.mark.parametrize(("tokens", "expected"), [(50, "selective"), (4000, "gate_up")])
def test_the_choice_follows_the_size(tokens: int, expected: str) -> None:
    size = _C.count_parameters(json.dumps(CONFIG))
    assert choose_recompute(CONFIG, size, tokens, 4) == expected
