"""Optimizer state in fewer bytes: split masters change no bit, bfloat16 moments are reproducible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engines import new_engine, planned_bytes, train_step
from fastsft import _C
from ranks import run_ranks
from runs import random_dataset
from shard.test_strategies import ROWS, STRATEGIES, VOCAB, check_same_bits, config, initialise

NARROW = {"optim_dtype": "bfloat16", "master_dtype": "split", "grad_dtype": "bfloat16"}


def make(groups: dict[str, str], options: dict[str, Any]) -> _C.Engine:
    engine = new_engine(config(False), compute_dtype="bfloat16", **groups, **options)
    initialise(engine)
    return engine


def steps(engine: _C.Engine, first: int, last: int, seed: int = 1) -> list[tuple[float, float]]:
    dataset, results = random_dataset(ROWS, VOCAB, 40), []
    for step in range(first, last):
        rows = np.random.default_rng(step).permutation(ROWS)[engine.rank :: engine.world_size]
        result = train_step(
            engine, dataset, [rows], [np.full(len(rows), 1 / 200)], learning_rate=1e-2, weight_decay=0.1,
            max_grad_norm=0.5, rounding_seed=seed,
        )  # fmt: skip
        results.append((result.loss, result.grad_norm))
    return results


def train(groups: dict[str, str], options: dict[str, Any], seed: int = 1) -> dict[str, Any]:
    engine = make(groups, options)
    results = steps(engine, 0, 10, seed)
    losses, norms = ([result[i] for result in results] for i in (0, 1))
    return {
        "losses": losses, "norms": norms, "weights": engine.named_parameters(), "memory": engine.memory(),
    }  # fmt: skip


ALONE = [(1, "no_shard"), *((2, name) for name in STRATEGIES), (3, "full_shard"), (3, "shard_grad_op")]


@pytest.mark.variants("3-full_shard", "2-shard_grad_op", "2-hybrid_shard_zero2", "1-no_shard")
@pytest.mark.parametrize("world_size, strategy", ALONE)
def test_a_split_master_changes_no_bit(world_size: int, strategy: str) -> None:
    whole, split = (
        run_ranks(world_size, train, {"strategy": strategy, "master_dtype": dtype})
        for dtype in ("float32", "split")
    )
    for pair in zip(whole, split, strict=True):
        check_same_bits(list(pair))
        assert pair[0]["memory"]["optimizer"] * 10 == pair[1]["memory"]["optimizer"] * 12


@pytest.mark.variants("True")
@pytest.mark.parametrize("offload", [False, True])
def test_rounding_repeats_and_follows_the_seed(offload: bool) -> None:
    options = {"strategy": "full_shard", **NARROW}
    first, again = (run_ranks(2, train, {**options, "offload": value}) for value in (False, offload))
    check_same_bits([*first, *again])
    other = run_ranks(2, train, options, 2)[0]
    assert other["losses"][:2] == first[0]["losses"][:2] and other["losses"] != first[0]["losses"]


def test_ten_bytes_a_parameter() -> None:
    engine = make({}, NARROW)
    padded = sum(-(-size // 128) * 128 for size in engine.unit_sizes)
    # Embedding, and head with norm: linears of blocks are never whole in float32.
    embedding, *_, head = engine.unit_sizes
    memory, largest = engine.memory(), 128 * -(-max(embedding, head) // 128)
    assert (memory["parameters"], memory["optimizer"]) == (2 * padded, 6 * padded)
    assert memory["gradients"] == 2 * padded + 2 * 4 * largest


@pytest.mark.variants("2-full_shard", "2-hybrid_shard]", "1-no_shard")
@pytest.mark.parametrize("world_size, strategy", ALONE[:-2])
def test_the_plan_knows_the_dtypes(world_size: int, strategy: str) -> None:
    plan = planned_bytes(
        config(False), compute_dtype="bfloat16", strategy=strategy, world_size=world_size, **NARROW
    ).parts
    memory = run_ranks(world_size, train, {"strategy": strategy, **NARROW})[0]["memory"]
    for name in ("parameters", "gradients", "optimizer"):
        assert plan[name] == memory[name], name


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    whole = make({}, NARROW)
    steps(whole, 0, 3)
    _C.save_training_state(whole, str(tmp_path))
    expected = steps(whole, 3, 6)
    resumed = new_engine(config(False), compute_dtype="bfloat16", **NARROW)
    _C.load_training_state(resumed, str(tmp_path))
    resumed.step_count = 3
    assert steps(resumed, 3, 6) == expected
    stored = load_file(next(tmp_path.glob("*.safetensors")))
    dtypes = {name.rsplit(".", 1)[1]: tensor.dtype for name, tensor in stored.items()}
    assert dtypes == {"master": torch.float32, "exp_avg": torch.bfloat16, "exp_avg_sq": torch.bfloat16}


@pytest.mark.parametrize("saved, loaded", [(NARROW, {}), ({}, NARROW)], ids=["wider", "narrower"])
def test_state_of_other_dtypes_is_read(tmp_path: Path, saved: dict, loaded: dict) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = make({}, saved)
    steps(one, 0, 2)
    _C.save_training_state(one, str(tmp_path / "one"))
    two = new_engine(config(False), compute_dtype="bfloat16", **loaded)
    _C.load_training_state(two, str(tmp_path / "one"))
    _C.save_training_state(two, str(tmp_path / "two"))
    before, after = (load_file(next((tmp_path / name).glob("*.safetensors"))) for name in ("one", "two"))
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor.to(after[name].dtype)), name


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_split_master_needs_bfloat16_compute(dtype: str) -> None:
    with pytest.raises(ValueError, match=r"compute_dtype is not bfloat16; use --bf16"):
        new_engine(config(False), master_dtype="split", compute_dtype=dtype)
    with pytest.raises(ValueError, match='master_dtype is "bfloat16", expected "float32" or "split"'):
        new_engine(config(False), master_dtype="bfloat16")
