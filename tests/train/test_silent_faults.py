"""A bit that flips in a gradient or in the state is found, and the rank is named.

docs/spec/reliability.md, row R17.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engines import new_engine
from fastsft.runtime.errors import ReplayMismatchError, ReplicaMismatchError
from fastsft.trainer.bad_steps import check_replay, check_replicas, deviating
from injected_faults import at_call, flip_bit, op_fault
from ranks import run_ranks
from shard.test_strategies import config, initialise
from train.test_bad_numbers import digests, engine_of, step

RANKS = 3


def flipped(element: int, bit: int, computation: int) -> Any:
    """The embedding's gradient in the first or the second computation of a step."""

    def act(original: Any, args: Any, kwargs: Any) -> None:
        original(*args, **kwargs)
        words = args[2].view(-1)
        flip_bit(args[2], int(words.abs().gt(0).nonzero()[element % int(words.ne(0).sum())]), bit)

    return at_call(computation, act)


def doubled_gradient(number: int) -> Any:
    """Of the weight that is multiplied as the `number`-th."""
    count = 0

    def act(original: Any, args: Any, kwargs: Any) -> None:
        nonlocal count
        original(*args, **kwargs)
        of_weight = bool(args[3])  # its first operand is transposed
        count += of_weight
        if of_weight and count == number:
            args[2].mul_(2)

    return act


def meet() -> None:
    """The place of this rank as the launcher reads it."""
    import os

    import torch.distributed as dist

    os.environ |= {"RANK": str(dist.get_rank()), "WORLD_SIZE": str(dist.get_world_size())}


def outcome(check: Any, engine: Any) -> str:
    try:
        check(engine, 7)
    except (ReplayMismatchError, ReplicaMismatchError) as error:
        return f"{error.exit_status} {error}"
    return "equal"


def gradient_flips(
    groups: dict[str, str], strategy: str, trials: int, seed: int, sync_each_batch: bool = True
) -> list[str]:
    """Trials that were not found, not named rightly, or that changed a weight."""
    meet()
    engine = engine_of(groups, strategy, sync_each_batch=sync_each_batch)
    random, wrong = np.random.default_rng(seed), []
    if not step(engine, replay=True).finite or outcome(check_replay, engine) != "equal":
        wrong.append("a good step")
    for _ in range(trials):
        guilty, element, bit, computation = (int(random.integers(n)) for n in (RANKS, 1000, 32, 2))
        before = digests(engine)
        if engine.rank == guilty:
            with op_fault("embedding_backward", flipped(element, bit, computation + 1)):
                result = step(engine, replay=True)
        else:
            result = step(engine, replay=True)
        found = outcome(check_replay, engine)
        named = found.startswith("16 ") and f": rank {guilty} computed different gradients" in found
        if result.finite or not named or digests(engine) != before:
            wrong.append(f"bit {bit} of element {element} on rank {guilty}: {found}")
    return wrong


def state_flips(groups: dict[str, str], strategy: str, trials: int, seed: int) -> list[str]:
    meet()
    random, wrong = np.random.default_rng(seed), []
    for _ in range(trials):
        engine = engine_of(groups, strategy)
        step(engine)
        if outcome(check_replicas, engine) != "equal":
            wrong.append("a good state")
        guilty, bit = int(random.integers(RANKS)), int(random.integers(31))
        name = sorted(engine.parameter_shapes)[int(random.integers(len(engine.parameter_shapes)))]
        whole = engine.named_parameters()[name]  # collective: on all ranks
        element = int(random.integers(whole.numel()))
        if engine.rank == guilty:
            flip_bit(whole, element, bit)
            engine.set_parameter(name, whole)
        found = outcome(check_replicas, engine)
        if (
            not found.startswith("17 ")
            or f"differ: rank {guilty} against the others, in the state of" not in found
        ):
            wrong.append(f"bit {bit} of {name} on rank {guilty}: {found}")
    return wrong


@pytest.mark.parametrize("strategy", ["no_shard", "full_shard"])
def test_a_flipped_bit_of_a_gradient_is_found_and_its_rank_named(strategy: str) -> None:
    assert run_ranks(RANKS, gradient_flips, strategy, 5, 1) == [[]] * RANKS


def test_the_same_of_gradients_that_are_reduced_once_a_step() -> None:
    assert run_ranks(RANKS, gradient_flips, "full_shard", 5, 1, False) == [[]] * RANKS


@pytest.mark.parametrize("grad_dtype", ["float32", "bfloat16"])
def test_a_wrong_product_of_a_rank_alone_is_its_own(grad_dtype: str) -> None:
    """Also where products write the gradient that is kept: nothing came from another rank."""
    engine = new_engine(
        config(False),
        strategy="no_shard",
        compute_dtype="bfloat16",
        master_dtype="float32",
        grad_dtype=grad_dtype,
    )
    initialise(engine)
    assert step(engine, replay=True).finite and outcome(check_replay, engine) == "equal"
    for number in (1, 4, 10):  # of 12 gradients of weights in the first computation
        with op_fault("gemm", doubled_gradient(number)):
            result = step(engine, replay=True)
        assert not result.finite
        assert ": rank 0 computed different gradients" in outcome(check_replay, engine)


def test_a_flipped_bit_of_the_state_is_found_and_its_rank_named() -> None:
    assert run_ranks(RANKS, state_flips, "no_shard", 3, 1) == [[]] * RANKS


@pytest.mark.chaos
def test_a_hundred_flipped_bits() -> None:
    found = [run_ranks(RANKS, gradient_flips, strategy, 25, 2) for strategy in ("no_shard", "full_shard")]
    found += [
        run_ranks(RANKS, gradient_flips, "shard_grad_op", 25, 3),
        run_ranks(RANKS, state_flips, "no_shard", 25, 4),
    ]
    assert found == [[[]] * RANKS] * 4


def test_majorities() -> None:
    assert deviating({0: 5, 1: 5, 2: 5}) == [] and deviating({0: 5}) == []
    assert deviating({0: 5, 1: 6, 2: 5}) == [1]
    assert deviating({0: 5, 1: 6}) == [0, 1], "with two copies nobody knows which is right"
    assert deviating({0: 5, 1: 6, 2: 5, 3: 6}) == [0, 1, 2, 3]
    assert deviating({3: 1, 1: 1, 2: 2}) == [2]
