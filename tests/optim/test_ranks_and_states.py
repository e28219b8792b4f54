"""Every optimizer on one to four ranks of every strategy, in every format, and its state through files."""

from __future__ import annotations

import functools
import json
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

OTHERS = [name for name in _C.optimizers() if name != "adamw"]  # which the other tests train with
STRATEGIES = ["full_shard", "shard_grad_op", "no_shard"]
VOCAB, ROWS, STEPS = 97, 12, 3
# Relative, of weights; a gradient that is rounded in another order may move a code of 8 bits by one.
WITHIN = {"adamw_8bit": 5e-4}
FORMATS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"compute_dtype": "bfloat16", "master_dtype": "split"},
    "whole masters": {"compute_dtype": "bfloat16", "grad_dtype": "bfloat16"},
    "float16": {"compute_dtype": "float16"},
    "offload": {"compute_dtype": "bfloat16", "offload": True},
}


def config(tied: bool = False) -> str:
    """Heads of 10, tensors with more than 4,096 elements and with fewer, ranges that begin inside rows, and
    inside the tensors of a fused group.
    """
    return json.dumps({
        "model_type": "qwen2", "vocab_size": VOCAB, "hidden_size": 80, "intermediate_size": 104,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": tied,
    })  # fmt: skip


def new(optimizer: str, tied: bool = False, **options: Any) -> _C.Engine:
    engine = new_engine(config(tied), optimizer=optimizer, **options)
    generator = torch.Generator().manual_seed(1)
    for name, tensor in engine.named_parameters().items():
        noise = torch.randn(tensor.shape, generator=generator)
        engine.set_parameter(name, 1 + 0.1 * noise if "norm" in name else 0.1 * noise)
    engine.publish()
    return engine


def steps(
    engine: _C.Engine, count: int = STEPS, first: int = 0, micro_batches: int = 2, **changes: Any
) -> list[float]:
    """Conversation r of a step goes to rank r mod W; the losses."""
    dataset, losses = random_dataset(ROWS, VOCAB, 40), []
    options = {"learning_rate": 1e-2, "weight_decay": 0.1, "max_grad_norm": 0.5, **changes}
    for step in range(first, first + count):
        mine = np.random.default_rng(step).permutation(ROWS)[engine.rank :: engine.world_size]
        halves = np.array_split(mine, micro_batches)
        result = train_step(
            engine, dataset, halves, [np.full(len(half), 1 / 200) for half in halves], **options
        )
        assert result.finite
        losses.append(result.loss)
    return losses


def trained(
    groups: dict[str, str],
    optimizer: str,
    strategy: str,
    tied: bool,
    max_grad_norm: float = 0.5,
    micro_batches: int = 2,
) -> Any:
    engine = new(optimizer, tied, strategy=strategy, **groups)
    losses = steps(engine, max_grad_norm=max_grad_norm, micro_batches=micro_batches)
    return losses, engine.named_parameters(), [unit.parameters for unit in engine.state_digests()]


@functools.cache
def alone(optimizer: str, tied: bool) -> Any:
    return run_ranks(1, trained, optimizer, "no_shard", tied)[0]


@pytest.mark.covering
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("optimizer", OTHERS)
def test_ranks_equal_one_rank(optimizer: str, world_size: int, strategy: str, tied: bool) -> None:
    results = run_ranks(world_size, trained, optimizer, strategy, tied)
    check_equal(results, alone(optimizer, tied), WITHIN.get(optimizer, 1e-5))


@pytest.mark.parametrize("strategy", STRATEGIES[:2])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw_8bit"])
def test_ranges_have_the_bits_of_whole_units(optimizer: str, strategy: str) -> None:
    """Two ranks sum one micro-batch alike, and nothing is clipped: blocks that are cut are as whole ones."""
    expected, found = (
        run_ranks(2, trained, optimizer, kind, False, 0.0, 1)[0] for kind in ("no_shard", strategy)
    )
    assert found[0] == expected[0]
    assert all(torch.equal(found[1][name], tensor) for name, tensor in expected[1].items())


@pytest.mark.covering
@pytest.mark.parametrize("strategy", [name for name, inside in _C.strategies().items() if inside])
@pytest.mark.parametrize("optimizer", OTHERS)
def test_nodes_equal_one_rank(optimizer: str, strategy: str) -> None:
    results = run_ranks(4, trained, optimizer, strategy, False, node_size=2)
    check_equal(results, alone(optimizer, False), WITHIN.get(optimizer, 1e-5))


def check_equal(results: list[Any], expected: Any, within: float) -> None:
    """The bias of keys has no effect: its gradient is rounding, which updates by size make larger."""
    for losses, weights, digests in results:
        assert losses == pytest.approx(expected[0], abs=2e-6)
        for name, weight in expected[1].items():
            most = 10 * within if name.endswith("k_proj.bias") else within
            assert ((weights[name] - weight).norm() / weight.norm()).item() <= most, name
        assert digests == results[0][2], "ranks compute with different weights"


@pytest.mark.parametrize("kind", list(FORMATS)[1:])
@pytest.mark.parametrize("optimizer", OTHERS)
def test_formats_learn_as_float32(optimizer: str, kind: str) -> None:
    rate = {"learning_rate": 0.5} if optimizer == "sgd" else {}
    expected, found = (steps(new(optimizer, **FORMATS[name]), 6, **rate) for name in ("float32", kind))
    assert found == pytest.approx(expected, rel=0.02) and found != expected
    assert found[-1] < 0.97 * found[0]


@pytest.mark.parametrize("optimizer", OTHERS)
def test_a_split_master_and_offloading_have_the_bits_of_a_whole_one(optimizer: str) -> None:
    whole = {"compute_dtype": "bfloat16"}
    engines = [new(optimizer, **whole, **more) for more in ({}, {"master_dtype": "split"}, {"offload": True})]
    losses, *others = [steps(engine, 4) for engine in engines]
    assert all(other == losses for other in others)
    expected, *found = [engine.named_parameters() for engine in engines]
    assert all(torch.equal(weights[name], tensor) for weights in found for name, tensor in expected.items())


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("optimizer", OTHERS)
def test_a_bad_step_changes_nothing(optimizer: str, kind: str) -> None:
    engine = new(optimizer, **FORMATS[kind])
    steps(engine, 1)
    before = [(unit.state, unit.parameters) for unit in engine.state_digests()]
    dataset = random_dataset(4, VOCAB, 20)
    result = train_step(
        engine,
        dataset,
        [np.arange(4)],
        [np.full(4, 1e-2)],
        learning_rate=1e-2,
        weight_decay=0.1,
        loss_limit=0.0,
    )
    assert not result.finite and engine.step_count == 1
    assert [(unit.state, unit.parameters) for unit in engine.state_digests()] == before


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("optimizer", [*OTHERS, "adamw"])
def test_a_loaded_state_goes_on_bit_for_bit(optimizer: str, kind: str, tmp_path: Path) -> None:
    first, second = (new(optimizer, **FORMATS[kind]) for _ in range(2))
    steps(first, 2)
    _C.save_training_state(first, str(tmp_path))
    _C.load_training_state(second, str(tmp_path))
    second.step_count = first.step_count
    assert steps(first, 3, 2) == steps(second, 3, 2)
    found = [[(unit.state, unit.parameters) for unit in engine.state_digests()] for engine in (first, second)]
    assert found[0] == found[1]


def resumed(groups: dict[str, str], optimizer: str, strategy: str, folder: str, streamed: str) -> Any:
    """Loads a state and goes on; what it loaded is streamed as one file."""
    engine = new(optimizer, strategy=strategy, **groups)
    _C.load_training_state(engine, folder)
    engine.step_count = 2
    _C.stream_training_state(engine, streamed)
    losses = steps(engine, 2, 2)
    return losses, engine.named_parameters(), [unit.state for unit in engine.state_digests()]


def begun(groups: dict[str, str], optimizer: str, strategy: str, folder: str) -> Any:
    engine = new(optimizer, strategy=strategy, **groups)
    steps(engine, 2)
    _C.save_training_state(engine, folder)
    losses = steps(engine, 2, 2)
    return losses, engine.named_parameters(), [unit.state for unit in engine.state_digests()]


@pytest.mark.covering
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("optimizer", OTHERS)
def test_two_ranks_go_on_bit_for_bit_and_others_read_them(
    optimizer: str, strategy: str, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("saved", "two", "three", "one")]
    for folder in folders:
        folder.mkdir()
    saved, two, three, one = map(str, folders)
    expected = run_ranks(2, begun, optimizer, strategy, saved)
    found = run_ranks(2, resumed, optimizer, strategy, saved, two)
    for (losses, weights, states), (wanted, wanted_weights, wanted_states) in zip(
        found, expected, strict=True
    ):
        assert (losses, states) == (wanted, wanted_states)
        assert all(torch.equal(weights[name], tensor) for name, tensor in wanted_weights.items())
    run_ranks(3, resumed, optimizer, "full_shard", saved, three)
    run_ranks(1, resumed, optimizer, "no_shard", saved, one)
    contents = [
        load_file(Path(folder) / "optimizer-rank-00000-of-00001.safetensors") for folder in (two, three, one)
    ]
    for content in contents[1:]:
        assert content.keys() == contents[0].keys()
        assert all(torch.equal(content[name], tensor) for name, tensor in contents[0].items())


@pytest.mark.parametrize("optimizer", OTHERS)
def test_the_state_of_another_optimizer_is_refused(optimizer: str, tmp_path: Path) -> None:
    _C.save_training_state(new("adamw"), str(tmp_path))
    with pytest.raises(
        ValueError, match=r"expected the state of the optimizer .* got that of another \(exp_avg, "
    ):
        _C.load_training_state(new(optimizer), str(tmp_path))
    (tmp_path / "other").mkdir()
    _C.save_training_state(new(optimizer), str(tmp_path / "other"))
    with pytest.raises(ValueError, match="resume with the --optim that the checkpoint was written with"):
        _C.load_training_state(new("adamw"), str(tmp_path / "other"))


@pytest.mark.parametrize("kind", FORMATS)
def test_sgd_keeps_nothing(kind: str, tmp_path: Path) -> None:
    engine = new("sgd", **FORMATS[kind])
    steps(engine, 1)
    masters = sum(4 if "master_dtype" not in FORMATS[kind] else 2 for _ in range(1))
    padded = sum(-(-size // 128) * 128 for size in engine.unit_sizes)
    held, narrow = engine.memory(), kind != "float32"
    offloaded = kind == "offload"
    assert held["offloaded" if offloaded else "optimizer"] == (masters * padded if narrow else 0)
    plan = planned_bytes(config(), optimizer="sgd", **FORMATS[kind]).parts
    assert plan["optimizer on the host" if offloaded else "optimizer"] == (masters * padded if narrow else 0)
    _C.save_training_state(engine, str(tmp_path))
    content = load_file(tmp_path / "optimizer-rank-00000-of-00001.safetensors")
    assert {name.rsplit(".", 1)[1] for name in content} == {"master"}


def test_adafactor_keeps_rows_and_columns(tmp_path: Path) -> None:
    """Those of each tensor of Hugging Face, not of the group that it is computed in."""
    engine = new("adafactor")
    expected = {"exp_avg_sq_row": 0, "exp_avg_sq_col": 0, "exp_avg_sq": 0}
    for shape in engine.parameter_shapes.values():
        matrix = len(shape) == 2
        expected["exp_avg_sq_row"] += shape[0] if matrix else 0
        expected["exp_avg_sq_col" if matrix else "exp_avg_sq"] += shape[-1]
    _C.save_training_state(engine, str(tmp_path))
    content = load_file(tmp_path / "optimizer-rank-00000-of-00001.safetensors")
    for kind, count in expected.items():
        assert sum(tensor.numel() for name, tensor in content.items() if name.endswith("." + kind)) == count


@pytest.mark.parametrize("optimizer", ["sgd", "adafactor"])
def test_moments_in_bfloat16_are_refused(optimizer: str) -> None:
    with pytest.raises(
        ValueError, match=f'optim_dtype is bfloat16, which the optimizer "{optimizer}" does not'
    ):
        new_engine(config(), optimizer=optimizer, optim_dtype="bfloat16")


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(ValueError, match='unknown optimizer "lion"; known: ada'):
        new_engine(config(), optimizer="lion")
