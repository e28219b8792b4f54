"""Choices by memory: the fastest that fits, and what to change when nothing does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines import STATE_OPTIONS
from fake_run import Rows
from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.cli.demo_model import small_config
from fastsft.data.epoch_order import epoch_order
from fastsft.data.token_rows import TokenRows
from fastsft.planning.devices import available_host_memory, size_text, usable_memory
from fastsft.planning.gpus import gpu_named
from fastsft.planning.memory_plan import BatchShape, EngineSettings, plan_memory
from fastsft.planning.plan_choice import choose_plan, plan_run_memory
from fastsft.planning.plan_request import MemoryBudget, PlanRequest
from fastsft.reporting.plan_lines import memory_table

CONFIG = json.dumps(
    small_config(vocab_size=512, hidden_size=64, num_layers=6, num_heads=4, intermediate_size=172)
)
SETTING = EngineSettings(CONFIG)


def changed(setting: EngineSettings, **changes: Any) -> EngineSettings:
    """Another setting; options of the state are named next to the others."""
    state = {name: value for name, value in changes.items() if name in STATE_OPTIONS}
    others = {name: value for name, value in changes.items() if name not in STATE_OPTIONS}
    return replace(setting.with_state(**state), **others)


PLENTY = MemoryBudget(1 << 40)


def work(budget: int) -> BatchShape:
    return BatchShape.full(max(budget, 256), 256)


def total(recompute: str, budget: int = 1024) -> int:
    return plan_memory(SETTING, recompute, budget, work(budget)).total


def test_policies_are_ordered_by_memory() -> None:
    totals = [total(name) for name in _C.recompute_policies()]
    assert _C.recompute_policies()[0] == "none" and totals == sorted(totals, reverse=True)
    assert len(set(totals)) == 4


def test_the_first_that_fits_is_taken() -> None:
    request = PlanRequest(token_budget=1024)
    for name in ("gate_up", "block"):
        assert choose_plan(SETTING, request, work, MemoryBudget(total(name))).recompute == name
    assert choose_plan(SETTING, PlanRequest("none", 1024), work, PLENTY).recompute == "none"


@pytest.mark.parametrize(
    ("tokens", "expected"), [(30, "none"), (50, "none"), (70, "selective"), (4000, "gate_up")]
)
def test_where_all_fit_activations_stay_small_beside_the_state(tokens: int, expected: str) -> None:
    plan = choose_plan(
        SETTING, PlanRequest(token_budget=tokens), lambda budget: BatchShape.full(budget, 64), PLENTY
    )
    assert plan.recompute == expected


def test_budgets_shrink_until_they_fit() -> None:
    request = PlanRequest(max_seqlen=256, step_tokens=5000)
    assert request.budgets("cpu") == [5000, 2500, 1250, 625, 312, 256]
    assert PlanRequest(max_seqlen=256, step_tokens=50_000).budgets("cpu")[0] == 8192
    assert PlanRequest(max_seqlen=9000, step_tokens=50_000).budgets("cpu") == [9000]
    plan = choose_plan(
        SETTING,
        PlanRequest("block", max_seqlen=256, step_tokens=5000),
        work,
        MemoryBudget(total("block", 625)),
    )
    assert (plan.token_budget, plan.recompute) == (625, "block")


def test_smaller_micro_batches_come_before_whole_blocks() -> None:
    request = PlanRequest(max_seqlen=256, step_tokens=5000)
    room = MemoryBudget(total("block", 625))
    assert total("gate_up", 312) < room.device < total("gate_up", 625)
    plan = choose_plan(SETTING, request, work, room)
    assert (plan.token_budget, plan.recompute) == (312, "gate_up")


CONFIGS = Path(__file__).parents[2] / "benchmarks" / "configs"
NARROW = {"grad_dtype": "bfloat16", "optim_dtype": "bfloat16", "master_dtype": "split"}


@pytest.mark.parametrize(
    ("model", "dtypes", "budget", "recompute"),
    [
        ("vicuna-7b", {}, 4096, "none"),
        ("vicuna-7b", {"grad_dtype": "bfloat16"}, 8192, "none"),
        ("vicuna-7b", NARROW, 16384, "none"),
        ("llama-3-8b", {"grad_dtype": "bfloat16"}, 2048, "none"),
        ("vicuna-13b", NARROW, 2048, "none"),
    ],
)
def test_no_model_of_one_h200_recomputes_whole_blocks(
    model: str, dtypes: dict[str, str], budget: int, recompute: str
) -> None:
    """139.8 GiB, 65,536 tokens a step, conversations of at most 2,048."""
    config = (CONFIGS / f"{model}.json").read_text()
    setting = changed(
        EngineSettings(config, gpu=gpu_named("H200")), compute_dtype="bfloat16", device="cuda", **dtypes
    )

    def of(tokens: int) -> BatchShape:
        return BatchShape.full(tokens, 2048, 65_536 // tokens)

    room = MemoryBudget(usable_memory("cuda", 139.8 * 2**30))
    plan = choose_plan(setting, PlanRequest(max_seqlen=2048, step_tokens=65_536), of, room)
    assert (plan.token_budget, plan.recompute) == (budget, recompute)


def test_a_gpu_is_filled_but_for_a_reserve() -> None:
    gib = 1 << 30
    assert usable_memory("cpu", 100 * gib) == 90 * gib
    assert usable_memory("cuda", 40 * gib) == 37 * gib
    assert usable_memory("cuda", 200 * gib) == 194 * gib
    assert usable_memory("cuda", gib) == 0


def test_a_rare_long_row_is_planned_for() -> None:
    """Row 19,000 is in none of the steps that are looked at."""
    lengths = np.full(20_000, 200)
    args = TrainingArguments(output_dir="out", per_device_train_batch_size=4, max_grad_norm=1.0)
    last = epoch_order(args, TokenRows(Rows(lengths, lengths // 2), 8192), 0)[-1]
    lengths[last] = 8192
    rows = TokenRows(Rows(lengths, lengths // 2), 8192)
    plan = plan_run_memory(args, SETTING, rows, (1.0, 0.0), PLENTY)
    assert (plan.work.max_seqlen, plan.work.tokens, plan.work.step_tokens) == (8192, 8192, 8192 + 3 * 200)
    assert plan.work.labels >= 4096
    short = plan_run_memory(
        args, SETTING, TokenRows(Rows(*[np.full(20_000, 200)] * 2), 8192), (1.0, 0.0), PLENTY
    )
    assert (short.work.max_seqlen, short.work.tokens) == (200, 800)


def test_a_refusal_names_what_fits() -> None:
    alone = plan_memory(SETTING, "block", 256, work(256)).total
    with pytest.raises(ValueError, match=r"does not fit: it needs .* a rank") as error:
        choose_plan(
            SETTING, PlanRequest(max_seqlen=256, step_tokens=5000), work, MemoryBudget(int(0.8 * alone))
        )
    assert "what would fit: " in str(error.value) and "ranks with --fsdp full_shard" in str(error.value)
    with pytest.raises(ValueError, match="no single change of flags makes it fit"):
        choose_plan(SETTING, PlanRequest(max_seqlen=256), work, MemoryBudget(1000))
    with pytest.raises(ValueError, match=r"--recompute block \(.*--micro_batch_tokens 256"):
        choose_plan(
            SETTING, PlanRequest("none", 4096, max_seqlen=256), work, MemoryBudget(total("block", 4096))
        )


def test_every_offer_would_be_taken() -> None:
    """The figures of a refusal are those of the plans they name."""
    for strategy in ("no_shard", "shard_grad_op"):
        setting = changed(SETTING, strategy=strategy, world_size=2)
        sharded = plan_memory(changed(setting, strategy="full_shard"), "block", 256, work(256)).total
        with pytest.raises(ValueError, match=f"--fsdp full_shard .{size_text(sharded)}"):
            choose_plan(setting, PlanRequest(max_seqlen=256), work, MemoryBudget(sharded))


@pytest.mark.parametrize("strategy", _C.strategies())
def test_every_strategy_brings_its_bytes(strategy: str) -> None:
    plan = plan_memory(changed(SETTING, strategy=strategy, world_size=4, node_size=2), "block", 64, work(64))
    assert plan.state > 0


def test_names_and_nodes_are_checked() -> None:
    with pytest.raises(ValueError, match="node_size is 3, expected 0 or a divisor of the 4 ranks"):
        plan_memory(
            changed(SETTING, strategy="hybrid_shard", world_size=4, node_size=3), "block", 64, work(64)
        )
    with pytest.raises(ValueError, match="full_shard"):
        plan_memory(changed(SETTING, strategy="some", world_size=4), "block", 64, work(64))


SHARDED = changed(SETTING, world_size=4, node_size=2)


@pytest.mark.parametrize(
    ("hybrid", "inside"), [("hybrid_shard", "full_shard"), ("hybrid_shard_zero2", "shard_grad_op")]
)
def test_hybrid_holds_what_its_node_holds(hybrid: str, inside: str) -> None:
    copies = plan_memory(changed(SHARDED, strategy=hybrid), "block", 64, work(64))
    node = plan_memory(changed(SETTING, strategy=inside, world_size=2), "block", 64, work(64))
    assert copies.parts == node.parts
    one_node = plan_memory(changed(SHARDED, strategy=hybrid, node_size=0), "block", 64, work(64))
    assert one_node.parts == plan_memory(changed(SHARDED, strategy=inside), "block", 64, work(64)).parts


@pytest.mark.parametrize("strategy", _C.strategies())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_offload_moves_the_optimizer_to_the_host(strategy: str, dtype: str) -> None:
    setting = changed(SHARDED, strategy=strategy, compute_dtype=dtype, device="cuda")
    held = plan_memory(setting, "block", 64, work(64))
    offloaded = plan_memory(changed(setting, offload=True), "block", 64, work(64))
    # Page-locked memory comes in powers of two.
    assert 1 <= (offloaded.host - held.host) / held.parts["optimizer"] < 2
    assert held.parts["optimizer"] > offloaded.parts["optimizer"] > 0
    assert offloaded.parts["optimizer on the host"] == 0  # not of the device
    cpu = changed(setting, device="cpu")
    held, offloaded = (plan_memory(changed(cpu, offload=it), "block", 64, work(64)) for it in (False, True))
    assert offloaded.parts["optimizer on the host"] == held.parts["optimizer"]


def test_page_locked_memory_comes_in_powers_of_two() -> None:
    """Vicuna-7B: 32 layers of 202.4M parameters, embedding and head of 131.1M, each with three tensors."""
    config = (CONFIGS / "vicuna-7b.json").read_text()
    setting = changed(EngineSettings(config), compute_dtype="bfloat16", device="cuda", offload=True)
    plan = plan_memory(setting, "block", 2048, BatchShape.full(2048, 2048))
    pieces = 3 * (32 * (1 << 30) + 2 * (1 << 29))  # of 0.75 and 0.49 GiB
    assert 0 <= plan.host - pieces < 64 << 20


def test_both_rooms_are_needed() -> None:
    setting = changed(SETTING, device="cuda", offload=True)
    plan = plan_memory(setting, "block", 256, work(256))
    request = PlanRequest("block", 256, max_seqlen=256)
    assert choose_plan(setting, request, work, MemoryBudget(plan.total, plan.host)) == plan
    with pytest.raises(ValueError, match=f"needs {size_text(plan.host)} of host memory a rank"):
        choose_plan(setting, request, work, MemoryBudget(plan.total, plan.host - 1))
    with pytest.raises(ValueError, match=f"needs {size_text(plan.total)} a rank"):
        choose_plan(setting, request, work, MemoryBudget(plan.total - 1, plan.host))


def test_a_refusal_offers_offload_on_a_gpu_only() -> None:
    cuda = changed(SETTING, device="cuda")
    request = PlanRequest("block", 256, max_seqlen=256)
    offloaded = plan_memory(changed(cuda, offload=True), "block", 256, work(256))
    sizes = f"{size_text(offloaded.total)} and {size_text(offloaded.host)} of the host"
    offer = f'--fsdp "full_shard offload" ({sizes})'
    with pytest.raises(ValueError) as error:
        choose_plan(cuda, request, work, MemoryBudget(offloaded.total))
    assert offer in str(error.value)
    with pytest.raises(ValueError) as error:
        choose_plan(cuda, request, work, MemoryBudget(offloaded.total, offloaded.host - 1))
    assert "offload" not in str(error.value)
    with pytest.raises(ValueError) as error:
        choose_plan(SETTING, request, work, MemoryBudget(offloaded.total))
    assert "offload" not in str(error.value)


def test_a_refusal_offers_bfloat16_gradients() -> None:
    setting = changed(SETTING, strategy="full_shard", world_size=2, compute_dtype="bfloat16")
    request = PlanRequest("block", 256, max_seqlen=256)
    narrow = plan_memory(changed(setting, grad_dtype="bfloat16"), "block", 256, work(256)).total
    assert narrow < plan_memory(setting, "block", 256, work(256)).total
    with pytest.raises(ValueError, match=f"--grad_dtype bfloat16 .{size_text(narrow)}"):
        choose_plan(setting, request, work, MemoryBudget(narrow))


def test_a_refusal_offers_no_flag_that_saves_nothing() -> None:
    setting = changed(
        SETTING, strategy="full_shard", world_size=2, compute_dtype="bfloat16", master_dtype="split"
    )
    request = PlanRequest("block", 256, max_seqlen=256)
    both = {"grad_dtype": "bfloat16", "optim_dtype": "bfloat16"}
    narrow = plan_memory(changed(setting, **both), "block", 256, work(256)).total
    with pytest.raises(ValueError) as error:
        choose_plan(setting, request, work, MemoryBudget(narrow))
    assert f"--grad_dtype bfloat16 --optim_dtype bfloat16 ({size_text(narrow)})" in str(error.value)


def test_the_table_adds_up() -> None:
    plan = plan_memory(SETTING, "selective", 1024, work(1024))
    *rows, last, beside = memory_table(plan, MemoryBudget(2 * plan.total))
    assert len(rows) == sum(size > 0 for size in [*plan.parts.values(), plan.outside])
    assert last.split() == f"a rank at most {size_text(plan.total)} of {size_text(2 * plan.total)}".split()
    assert beside.split() == f"host copy while saving {size_text(plan.staging)}".split()


def test_sizes_and_this_machine() -> None:
    assert [size_text(n) for n in (5 << 30, 300 << 30, 1 << 20, 2048)] == [
        "5.0 GiB", "300 GiB", "1.0 MiB", "2 KiB",
    ]  # fmt: skip
    assert 0 < available_host_memory() < 1 << 50
