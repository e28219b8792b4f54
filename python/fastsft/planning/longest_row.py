"""Finds the longest row that a memory plan can hold."""

from __future__ import annotations

from fastsft.planning.memory_plan import BatchShape, EngineSettings, MemoryPlan, plan_memory
from fastsft.planning.plan_request import MemoryBudget, PlanRequest

_STEP = 256  # lengths are multiples of it
_MOST = 1 << 25  # tokens; no model of today has rows of that length


def longest_row(
    setting: EngineSettings, request: PlanRequest, memory: MemoryBudget, micro_batches: int = 1
) -> MemoryPlan | None:
    """Return a plan whose only row of a micro-batch is the longest that fits; None if none fits.

    request: the values that the user chose; its lengths do not matter. micro_batches: of one rank in one
    step. Rotary embedding may have a lower limit.
    """
    best, step = _plan_of(_STEP, setting, request, memory, micro_batches), _STEP
    if best is None:
        return None
    while step < _MOST and (longer := _plan_of(2 * step, setting, request, memory, micro_batches)):
        best, step = longer, 2 * step
    length = step
    while step > _STEP:
        step //= 2
        if longer := _plan_of(length + step, setting, request, memory, micro_batches):
            best, length = longer, length + step
    return best


def _plan_of(
    length: int, setting: EngineSettings, request: PlanRequest, memory: MemoryBudget, micro_batches: int
) -> MemoryPlan | None:
    """Return the first plan that fits a row of `length` tokens in each micro-batch.

    Only the recompute policy with the fewest bytes is tried.
    """
    ranks = setting.state.context_parallel_size
    work = BatchShape.full(length, length, micro_batches).shared_by(ranks)
    for variant in request.variants(setting):
        for policy in request.policies(offload_inputs=variant.state.offload_inputs)[-1:]:
            plan = plan_memory(request.reduced(variant, work), policy, work.tokens, work)
            if memory.holds(plan):
                return plan
    return None
