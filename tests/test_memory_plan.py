"""Choices by memory: the fastest that fits, and what to change when nothing does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fastsft import _C
from fastsft.cli.random_model import small_config
from fastsft.device_memory import available_host_memory, size_text
from fastsft.memory_plan import Setting, Wish, Workload, choose_plan, plan_memory
from fastsft.reporting.memory_table import memory_table

CONFIG = json.dumps(
    small_config(vocab_size=512, hidden_size=64, num_layers=6, num_heads=4, intermediate_size=172)
)
SETTING = Setting(CONFIG)
PLENTY = 1 << 40


def work(budget: int) -> Workload:
    return Workload.full(max(budget, 256), 256)


def total(recompute: str, budget: int = 1024) -> int:
    return plan_memory(SETTING, recompute, budget, work(budget)).total


def test_policies_are_ordered_by_memory() -> None:
    totals = [total(name) for name in _C.recompute_policies()]
    assert _C.recompute_policies()[0] == "none" and totals == sorted(totals, reverse=True)
    assert len(set(totals)) == 4


def test_the_first_that_fits_is_taken() -> None:
    wish = Wish(token_budget=1024)
    for name in ("gate_up", "block"):
        assert choose_plan(SETTING, wish, work, total(name)).recompute == name
    assert choose_plan(SETTING, Wish("none", 1024), work, PLENTY).recompute == "none"


@pytest.mark.parametrize(
    ("tokens", "expected"), [(30, "none"), (50, "none"), (70, "selective"), (4000, "gate_up")]
)
def test_where_all_fit_activations_stay_small_beside_the_state(tokens: int, expected: str) -> None:
    plan = choose_plan(SETTING, Wish(token_budget=tokens), lambda budget: Workload.full(budget, 64), PLENTY)
    assert plan.recompute == expected


def test_budgets_shrink_until_they_fit() -> None:
    wish = Wish(longest=256, step_tokens=5000)
    assert wish.budgets("cpu") == [5000, 2500, 1250, 625, 312, 256]
    assert Wish(longest=256, step_tokens=50_000).budgets("cpu")[0] == 8192
    assert Wish(longest=9000, step_tokens=50_000).budgets("cpu") == [9000]
    plan = choose_plan(SETTING, wish, work, total("block", 625))
    assert (plan.token_budget, plan.recompute) == (625, "block")


def test_a_refusal_names_what_fits() -> None:
    alone = plan_memory(SETTING, "block", 256, work(256)).total
    with pytest.raises(ValueError, match=r"does not fit: it needs .* a rank") as error:
        choose_plan(SETTING, Wish(longest=256, step_tokens=5000), work, int(0.8 * alone))
    assert "what would fit: " in str(error.value) and "ranks with --fsdp full_shard" in str(error.value)
    with pytest.raises(ValueError, match="no single change of flags makes it fit"):
        choose_plan(SETTING, Wish(longest=256), work, 1000)
    with pytest.raises(ValueError, match=r"--recompute block \(.*--micro_batch_tokens 256"):
        choose_plan(SETTING, Wish("none", 4096, longest=256), work, total("block", 4096))


def test_every_offer_would_be_taken() -> None:
    """The figures of a refusal are those of the plans they name."""
    for strategy in ("no_shard", "shard_grad_op"):
        setting = replace(SETTING, strategy=strategy, world_size=2)
        sharded = plan_memory(replace(setting, strategy="full_shard"), "block", 256, work(256)).total
        with pytest.raises(ValueError, match=f"--fsdp full_shard .{size_text(sharded)}"):
            choose_plan(setting, Wish(longest=256), work, sharded)


def test_every_strategy_brings_its_bytes() -> None:
    for strategy in ("no_shard", "shard_grad_op", "full_shard"):
        plan = plan_memory(replace(SETTING, strategy=strategy, world_size=4), "block", 64, work(64))
        assert plan.state > 0
    with pytest.raises(ValueError, match="full_shard"):
        plan_memory(replace(SETTING, strategy="some", world_size=4), "block", 64, work(64))


def test_the_table_adds_up() -> None:
    plan = plan_memory(SETTING, "selective", 1024, work(1024))
    *rows, last = memory_table(plan, 2 * plan.total)
    assert len(rows) == sum(size > 0 for size in [*plan.parts.values(), plan.outside])
    assert last.split() == f"a rank at most {size_text(plan.total)} of {size_text(2 * plan.total)}".split()


def test_sizes_and_this_machine() -> None:
    assert [size_text(n) for n in (5 << 30, 300 << 30, 1 << 20, 2048)] == [
        "5.0 GiB", "300 GiB", "1.0 MiB", "2 KiB",
    ]  # fmt: skip
    assert 0 < available_host_memory() < 1 << 50
