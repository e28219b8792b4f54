"""Inputs of the planner: what the user left open, the memory that there is, and the plans to choose from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from fastsft.planning.memory_plan import BatchShape, EngineSettings, MemoryPlan, plan_memory

# Above this token count per micro-batch, matrix products get no faster.
USEFUL_TOKENS = {"cpu": 8192, "cuda": 16384}
# Tokens of a tile, which are few enough to save memory and many enough for matrix products to be fast.
TILE_TOKENS = {"cpu": 1024, "cuda": 8192}

BatchShapeOf = Callable[[int], BatchShape]


@dataclass(frozen=True)
class PlanRequest:
    """Inputs of the planner, which chooses every value that the user left open ("auto" or None).

    max_seqlen: a rank's tokens of the longest conversation, which is never split between micro-batches.
    step_tokens: a rank's tokens in a step. sync_each_batch: True to reduce gradients in every micro-batch.
    is_final: True if an earlier plan chose sync_each_batch; the choice is then kept even if a step has only
    one micro-batch. tile_tokens, offload_inputs, keep_fp8_weights: as the flags.
    """

    recompute: str = "auto"
    token_budget: int | None = None
    max_seqlen: int = 1
    step_tokens: int = 1
    sync_each_batch: bool | None = None
    is_final: bool = False
    tile_tokens: int | None = None
    offload_inputs: bool | None = None
    keep_fp8_weights: bool | None = None

    def budgets(self, device: str) -> list[int]:
        """Return the token budgets to try: the largest useful budget, then halves, down to max_seqlen."""
        if self.token_budget is not None:
            return [self.token_budget]
        least = max(self.max_seqlen, 1)
        budgets = [max(least, min(USEFUL_TOKENS[device], self.step_tokens))]
        while budgets[-1] > least:
            budgets.append(max(least, budgets[-1] // 2))
        return budgets

    def policies(self, *, offload_inputs: bool = False) -> list[str]:
        """Return the recompute policies to try, ordered from the fastest to the slowest."""
        from fastsft import _C

        policies = _C.recompute_policies() if self.recompute == "auto" else [self.recompute]
        return [policy for policy in policies if policy == "block" or not offload_inputs]

    def variants(self, setting: EngineSettings) -> list[EngineSettings]:
        """Return `setting` with tiles and with offloaded inputs, in the order in which they are tried.

        What the user left open is off at first: it is for rows that do not fit otherwise. Offloaded inputs
        come first, because they change no bits. ValueError for flags that the engine does not have.
        """
        from fastsft import _C

        if setting.state.fp8 != "none":
            setting = setting.with_state(keep_fp8_weights=bool(self.keep_fp8_weights))
        tiles: list[int] = [0, TILE_TOKENS[setting.device]]
        offloads = [False, True]
        if self.tile_tokens is not None:
            tiles = [self.tile_tokens]
        if setting.device == "cpu":  # the host's memory is the device's
            offloads = [False]
        elif self.offload_inputs is not None:
            offloads = [self.offload_inputs]
        if setting.generic is not None:
            for name, value in (("tile_tokens", self.tile_tokens), ("offload_inputs", self.offload_inputs)):
                if value:
                    raise ValueError(f"--{name} {value} needs the native engine; leave it out")
            return [setting]
        whole = ""  # why all tokens of a micro-batch are computed at once
        if setting.state.fp8 == "tensorwise":
            whole = "tensorwise fp8 has one scale for all tokens; leave it out, or use --fp8 rowwise"
        if not _C.takes_tiles(setting.config_json):
            whole = "a mixture of experts groups all tokens by expert; leave it out"
        if whole:
            if self.tile_tokens:
                raise ValueError(f"--tile_tokens {self.tile_tokens}: expected 0, {whole}")
            tiles = [0]
        return [
            setting.with_state(tile_tokens=tokens, offload_inputs=offload)
            for tokens in tiles
            for offload in offloads
        ]

    def reduced(self, setting: EngineSettings, work: BatchShape) -> EngineSettings:
        """Return `setting` with sync_each_batch as requested, by default True."""
        once = self.sync_each_batch is False and setting.may_reduce_once
        return setting.with_state(sync_each_batch=not (once and (self.is_final or work.micro_batches > 1)))


class PreviousPlan(NamedTuple):
    """Choices of an earlier plan, which a new plan keeps.

    None: the new plan chooses the value.
    """

    recompute: str
    token_budget: int | None = None
    sync_each_batch: bool | None = None
    tile_tokens: int | None = None
    offload_inputs: bool | None = None
    keep_fp8_weights: bool | None = None


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

    def lacks_of_host(self, plan: MemoryPlan) -> int:
        """Return by how many bytes the plan exceeds host memory."""
        return 0 if self.host is None else max(0, plan.host - self.host)

    def holds_host(self, plan: MemoryPlan) -> bool:
        """Return True if the plan's offloaded state and inputs fit into host memory."""
        return self.lacks_of_host(plan) == 0


def possible_plans(setting: EngineSettings, request: PlanRequest, shape_of: BatchShapeOf) -> list[MemoryPlan]:
    """Return a plan for each token budget and recompute policy that the request allows.

    setting: one of the request's variants. shape_of: returns the batch shape for a token budget.
    """
    offloads = setting.state.offload_inputs
    return [
        plan_memory(request.reduced(setting, work), policy, budget, work)
        for budget in request.budgets(setting.device)
        for work in [shape_of(budget)]
        for policy in request.policies(offload_inputs=offloads)
    ]
