"""Inputs of the planner: what the user left open, the memory that there is, and the plans to choose from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from fastsft.planning.memory_plan import BatchShape, EngineSettings, MemoryPlan, plan_memory

# Above this token count per micro-batch, matrix products get no faster.
USEFUL_TOKENS = {"cpu": 8192, "cuda": 16384}

BatchShapeOf = Callable[[int], BatchShape]


@dataclass(frozen=True)
class PlanRequest:
    """Inputs of the planner, which chooses every value that the user left open ("auto" or None).

    max_seqlen: tokens of the longest conversation, which is never split between micro-batches. step_tokens: a
    rank's tokens in a step. sync_each_batch: True to reduce gradients in every micro-batch. is_final: True if
    an earlier plan chose sync_each_batch; the choice is then kept even if a step has only one micro-batch.
    """

    recompute: str = "auto"
    token_budget: int | None = None
    max_seqlen: int = 1
    step_tokens: int = 1
    sync_each_batch: bool | None = None
    is_final: bool = False

    def budgets(self, device: str) -> list[int]:
        """Return the token budgets to try: the largest useful budget, then halves, down to max_seqlen."""
        if self.token_budget is not None:
            return [self.token_budget]
        least = max(self.max_seqlen, 1)
        budgets = [max(least, min(USEFUL_TOKENS[device], self.step_tokens))]
        while budgets[-1] > least:
            budgets.append(max(least, budgets[-1] // 2))
        return budgets

    def policies(self) -> list[str]:
        """Return the recompute policies to try, ordered from the fastest to the slowest."""
        from fastsft import _C

        return _C.recompute_policies() if self.recompute == "auto" else [self.recompute]

    def reduced(self, setting: EngineSettings, work: BatchShape) -> EngineSettings:
        """Return `setting` with sync_each_batch as requested, by default True."""
        once = self.sync_each_batch is False and setting.may_reduce_once
        return setting.with_state(sync_each_batch=not (once and (self.is_final or work.micro_batches > 1)))


class PreviousPlan(NamedTuple):
    """Choices of an earlier plan, which a new plan keeps.

    token_budget, sync_each_batch: None if the new plan chooses the value.
    """

    recompute: str
    token_budget: int | None = None
    sync_each_batch: bool | None = None


@dataclass(frozen=True)
class MemoryBudget:
    """The bytes that a rank may use.

    device: bytes on the rank's device. host: bytes in host memory in a GPU run; None: no limit.
    """

    device: int
    host: int | None = None

    def holds(self, plan: MemoryPlan) -> bool:
        """Return True if the plan fits into the memory of device and host."""
        return plan.total <= self.device and self.holds_host(plan)

    def holds_host(self, plan: MemoryPlan) -> bool:
        """Return True if the plan's offloaded state fits into host memory."""
        return self.host is None or plan.host <= self.host


def possible_plans(setting: EngineSettings, request: PlanRequest, shape_of: BatchShapeOf) -> list[MemoryPlan]:
    """Return a plan for each token budget and recompute policy that the request allows.

    shape_of: returns the batch shape for a token budget.
    """
    return [
        plan_memory(request.reduced(setting, work), policy, budget, work)
        for budget in request.budgets(setting.device)
        for work in [shape_of(budget)]
        for policy in request.policies()
    ]
