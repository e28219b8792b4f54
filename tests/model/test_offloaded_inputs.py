"""Inputs of blocks in host memory change no bit, and move while blocks compute."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from engines import new_engine
from fastsft import _C
from memory_run import MODELS as WIDE
from model.test_families import MODELS, Recorded
from model.test_tiles import engine_of
from runs import random_dataset

CONFIG = {**WIDE["untied"], "num_hidden_layers": 6}


@pytest.mark.parametrize("name", MODELS)
def test_no_bit_changes(golden: Path, name: str) -> None:
    loss, gradients = Recorded(golden / "models" / name, "block").gradients()
    recorded = Recorded(golden / "models" / name, "block", offload_inputs=True)
    again, others = recorded.gradients()
    assert loss == again
    assert all(torch.equal(gradient, others[key]) for key, gradient in gradients.items())


@pytest.mark.parametrize(
    ("layers", "lowest"),
    [(layers, lowest) for layers in range(1, 8) for lowest in (0, 1, 3) if lowest < layers],
)
def test_any_number_of_layers(layers: int, lowest: int) -> None:
    """`lowest`: the first layer with an adapter. Two passes, so that slots and pieces are used again."""
    config = json.dumps({**CONFIG, "num_hidden_layers": layers})
    linears = [
        _C.AdapterLinear(f"model.layers.{layer}.mlp.down_proj", rank=4, scale=1.0)
        for layer in range(lowest, layers)
    ]
    adapters = _C.AdapterOptions(linears=linears) if lowest else _C.AdapterOptions()
    dataset, rows = random_dataset(4, 1000, 40), np.arange(4)
    found = []
    for offload in (False, True):
        engine = engine_of(config, 16, recompute="block", offload_inputs=offload, adapters=adapters)
        for part in (rows[:1], rows):
            found.append(engine.gradients(dataset, part, np.full(len(part), 0.1)))
        assert (engine.memory()["inputs on the host"] > 0) == (offload and layers - lowest > 2)
    for (loss, gradients), (again, others) in zip(found[:2], found[2:], strict=True):
        assert loss == again
        assert all(torch.equal(gradient, others[key]) for key, gradient in gradients.items())


def test_inputs_move_beside_the_blocks() -> None:
    """An input is copied out when its block begins, and back when the block two above it has ended."""
    engine = engine_of(json.dumps(CONFIG), 0, recompute="block", offload_inputs=True)
    dataset, rows, weights = random_dataset(3, 1000, 40), [np.arange(3)], [np.full(3, 0.1)]
    engine.start_trace(capacity=10_000)
    engine.begin_step(dataset, rows, weights, learning_rate=1e-3)
    engine.take_results(all=True)
    spans = {span.name: span for span in engine.stop_trace()}
    layers = int(CONFIG["num_hidden_layers"])
    assert not any(f"input to the host {layer}" in spans for layer in (layers - 2, layers - 1))
    for layer in range(layers - 2):
        out, back = spans[f"input to the host {layer}"], spans[f"input from the host {layer}"]
        forward, above = spans[f"forward block.{layer}"], spans[f"backward block.{layer + 2}"]
        assert forward.began < out.began and out.ended < forward.ended
        assert above.began < back.began and back.ended < above.ended


def test_other_policies_are_refused() -> None:
    for recompute in ("none", "selective", "gate_up"):
        with pytest.raises(ValueError, match=f'offload_inputs is True, and recompute "{recompute}" keeps'):
            new_engine(json.dumps(CONFIG), recompute=recompute, offload_inputs=True)
