"""Norms, linear layers and MLPs in tiles of rows: the forward pass has the same bits, gradients are sums.

On a CPU the products of fewer rows may have other last bits: the library chooses its kernel by the number of
rows. So bits are compared with tiles of a size that it treats alike, and small tiles by TOLERANCES.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines import new_engine, train_step
from fastsft import _C
from memory_run import FAMILIES as WIDE_FAMILIES
from memory_run import MODELS as WIDE_MODELS
from model.test_families import MODELS, Recorded
from peft_pairs import CASES, PeftPair
from runs import random_dataset
from tolerances import TOLERANCES, assert_close

SMALL = 7  # tokens; no number of tokens of a test is a multiple of it
WIDE = {**WIDE_MODELS, **WIDE_FAMILIES}
MIXTURES = {"qwen3_moe", "mixtral"}


def engine_of(config: str, tile_tokens: int, **options: Any) -> _C.Engine:
    """Return an engine with random weights, the same for every `tile_tokens`."""
    engine = new_engine(config, tile_tokens=tile_tokens, **options)
    generator = torch.Generator().manual_seed(0)
    for name, shape in engine.trained_shapes.items():
        engine.set_parameter(name, torch.randn(shape, generator=generator) * 0.05)
    engine.publish()
    return engine


def assert_same_gradients(ours: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(ours[name], gradient, "model", name)


@pytest.mark.parametrize("recompute", _C.recompute_policies())
@pytest.mark.parametrize("name", MODELS)
def test_every_family_has_the_gradients_of_transformers(golden: Path, name: str, recompute: str) -> None:
    """Also each policy has the same bits as the others with the same tiles."""
    recorded = Recorded(golden / "models" / name, recompute)
    whole_loss, whole = recorded.gradients()
    if name in MIXTURES:
        with pytest.raises(
            ValueError, match="tile_tokens is 7, and a mixture of experts computes all tokens"
        ):
            recorded.engine.set_tile_tokens(SMALL)
        return
    recorded.engine.set_tile_tokens(SMALL)
    loss, gradients = recorded.gradients()
    assert loss == pytest.approx(recorded.summary["loss"], abs=TOLERANCES[torch.float32].loss)
    assert loss == pytest.approx(whole_loss, abs=TOLERANCES[torch.float32].loss)
    assert_same_gradients(gradients, whole)
    plain = Recorded(golden / "models" / name)
    plain.engine.set_tile_tokens(SMALL)
    other_loss, others = plain.gradients()
    assert loss == other_loss
    assert all(torch.equal(gradient, others[key]) for key, gradient in gradients.items())


@pytest.mark.parametrize("model", sorted({*WIDE} - MIXTURES))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_forward_pass_has_the_same_bits(model: str, dtype: str) -> None:
    """768 tokens in tiles of 256."""
    config = json.dumps({**WIDE[model], "num_hidden_layers": 2})
    lengths = np.array([500, 268])
    ids = np.arange(768) * 7 % 1000
    whole, tiled = (engine_of(config, tiles, compute_dtype=dtype).logits(ids, lengths) for tiles in (0, 256))
    assert torch.equal(whole, tiled)


@pytest.mark.parametrize(
    "case", [name for name, case in CASES.items() if "num_experts_per_tok" not in case[0]]
)
@pytest.mark.parametrize("recompute", ["selective", "block"])
def test_adapters(case: str, recompute: str) -> None:
    pair = PeftPair(case, adapter_dropout=0.3, recompute=recompute)
    loss, gradients = pair.gradients(dropout_seed=3)
    pair.engine.set_tile_tokens(SMALL)
    again, others = pair.gradients(dropout_seed=3)
    assert again == pytest.approx(loss, abs=TOLERANCES[torch.float32].loss)
    assert_same_gradients(others, gradients)


@pytest.mark.parametrize("recompute", ["selective", "block"])
def test_an_empty_micro_batch_has_a_gradient_of_zero(recompute: str) -> None:
    config = json.dumps({**WIDE["untied"], "num_hidden_layers": 2})
    engine = engine_of(config, 16, recompute=recompute)
    dataset, rows = random_dataset(3, 1000, 40), np.arange(3)
    none = np.array([], dtype=np.int64)
    loss, gradients = engine.gradients(dataset, none, np.array([]))
    assert loss == 0 and not any(gradient.any() for gradient in gradients.values())
    weights = np.full(3, 0.01)
    alone = train_step(
        engine_of(config, 16, recompute=recompute), dataset, [rows], [weights], learning_rate=1e-3
    )
    both = train_step(engine, dataset, [rows, none], [weights, np.array([])], learning_rate=1e-3)
    assert (both.loss, both.grad_norm) == (alone.loss, alone.grad_norm)


def test_tiles_change_between_steps() -> None:
    config = json.dumps({**WIDE["untied"], "num_hidden_layers": 2})
    dataset, rows, weights = random_dataset(4, 1000, 60), np.arange(4), np.full(4, 0.01)
    engine, other = engine_of(config, 0), engine_of(config, 16)
    engine.set_tile_tokens(16)
    for _ in range(2):
        steps = [train_step(each, dataset, [rows], [weights], learning_rate=1e-3) for each in (engine, other)]
        assert steps[0].loss == steps[1].loss and steps[0].grad_norm == steps[1].grad_norm
    with pytest.raises(ValueError, match=r"tile_tokens is -1, expected 0 \(no tiles\) or more"):
        engine.set_tile_tokens(-1)
    with pytest.raises(ValueError, match="tile_tokens is -3"):
        new_engine(config, tile_tokens=-3)
