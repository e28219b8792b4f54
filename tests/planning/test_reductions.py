"""One reduction a step is chosen where it brings something and fits into what is left."""

from __future__ import annotations

from typing import Any

import pytest

from fastsft.planning.devices import size_text
from fastsft.planning.memory_plan import BatchShape, EngineSettings, MemoryPlan, plan_memory
from fastsft.planning.plan_choice import choose_plan
from fastsft.planning.plan_request import MemoryBudget, PlanRequest
from planning.test_memory_plan import CONFIG, PLENTY, changed

SHARDED = changed(EngineSettings(CONFIG), strategy="full_shard", world_size=2)


def several(budget: int) -> BatchShape:
    """4,096 tokens a step."""
    return BatchShape.full(max(budget, 256), 256, 4096 // max(budget, 256))


def chosen(setting: EngineSettings, room: MemoryBudget = PLENTY, **request: Any) -> MemoryPlan:
    return choose_plan(setting, PlanRequest(max_seqlen=256, step_tokens=4096, **request), several, room)


def with_reductions(plan: MemoryPlan, *, each: bool) -> MemoryPlan:
    setting = plan.setting.with_state(sync_each_batch=each)
    return plan_memory(setting, plan.recompute, plan.token_budget, plan.work)


@pytest.mark.parametrize("strategy", ["full_shard", "shard_grad_op", "hybrid_shard"])
def test_steps_of_several_micro_batches_reduce_once(strategy: str) -> None:
    plan = chosen(changed(SHARDED, strategy=strategy), token_budget=1024)
    assert plan.work.micro_batches == 4 and not plan.setting.state.sync_each_batch


@pytest.mark.parametrize(
    ("budget", "changes"),
    [
        (4096, {}),  # a micro-batch a step
        (1024, {"world_size": 1}),
        (1024, {"strategy": "no_shard"}),
        (1024, {"grad_dtype": "bfloat16", "compute_dtype": "bfloat16"}),
    ],
)
@pytest.mark.parametrize("asked", [None, True, False])
def test_no_memory_is_spent_where_it_brings_nothing(
    budget: int, changes: dict[str, Any], asked: bool | None
) -> None:
    plan = chosen(changed(SHARDED, **changes), token_budget=budget, sync_each_batch=asked)
    assert plan.setting.state.sync_each_batch


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_micro_batches_are_not_made_smaller_for_it(device: str) -> None:
    setting = changed(SHARDED, device=device, compute_dtype="bfloat16")
    each = chosen(setting, sync_each_batch=True, token_budget=1024)
    once = with_reductions(each, each=False)
    assert once.total > each.total
    assert chosen(setting, MemoryBudget(once.total), token_budget=1024, recompute=each.recompute) == once
    assert chosen(setting, MemoryBudget(once.total - 1), token_budget=1024, recompute=each.recompute) == each


def test_flags_decide() -> None:
    assert chosen(SHARDED, token_budget=1024, sync_each_batch=True).setting.state.sync_each_batch
    once = chosen(SHARDED, token_budget=1024, sync_each_batch=False, recompute="block")
    assert not once.setting.state.sync_each_batch
    each = with_reductions(once, each=True)
    room = MemoryBudget(once.total - 1)
    with pytest.raises(ValueError, match=f"--sync_each_batch True .{size_text(each.total)}.") as error:
        chosen(SHARDED, room, token_budget=1024, sync_each_batch=False, recompute="block")
    assert "--grad_dtype" not in str(error.value)


def test_what_a_run_has_stays_without_accumulation() -> None:
    plan = chosen(SHARDED, token_budget=4096, sync_each_batch=False, is_final=True)
    assert plan.work.micro_batches == 1 and not plan.setting.state.sync_each_batch
