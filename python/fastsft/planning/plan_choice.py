"""Chooses the memory plan: the fastest token budget and recompute policy that fit into memory.

If no plan fits, the error names flag changes with which a plan would fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fastsft.arguments.device_fields import lower_precision, state_flag_choices
from fastsft.arguments.engine_flags import fsdp_flag
from fastsft.planning.devices import gpu_named, size_text
from fastsft.planning.memory_plan import BatchShape, EngineSettings, MemoryPlan, plan_memory
from fastsft.planning.time_model import predict, why_not

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.data.token_rows import TokenRows

# Above this token count per micro-batch, matrix products get no faster.
USEFUL_TOKENS = {"cpu": 8192, "cuda": 16384}
# Used if the time model makes no prediction. _RECOMPUTE_SHARE: time of recomputing, relative to the rest of
# the step. _FIXED_TOKENS: number of tokens whose computation takes as long as a micro-batch's fixed work,
# which is reading weights and accumulating gradients (docs/decisions.md).
_RECOMPUTE_SHARE = {"none": 0.0, "selective": 0.03, "gate_up": 0.15, "block": 0.33}
_FIXED_TOKENS = {"cpu": 32, "cuda": 256}
_USUAL_GPU = "H100"  # if the GPU is unknown, plans are compared by the times predicted for this GPU
# multiplies _FIXED_TOKENS on several ranks, whose micro-batches gather weights and reduce gradients
_GATHER_FACTOR = 4
# On a CPU, activations are kept instead of recomputed if they take at most this share of the bytes of
# parameters, gradients and optimizer state. Adapters have little state, so with adapters the share is
# relative to the memory budget (docs/decisions.md).
_KEPT_SHARE = 0.25
# Adapter steps compute no gradients for the model's weights, so recomputing is a larger share of their time.
_ADAPTER_FACTOR = 1.5

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


def choose_plan(
    setting: EngineSettings, request: PlanRequest, shape_of: BatchShapeOf, memory: MemoryBudget
) -> MemoryPlan:
    """Return the fastest plan that fits. ValueError if none fits, with flag changes that would fit.

    shape_of: returns the batch shape for a token budget.

    On a GPU, only speed decides. On a CPU, whose memory is shared with other programs, speed decides only the
    token budget. The recompute policy is then the fastest whose activations take at most a quarter of the
    bytes of parameters, gradients and optimizer state (with adapters: of the memory budget). If no policy
    does, it is the slowest fitting policy other than `block`, or else `block`.

    If the user left sync_each_batch open and a step has several micro-batches, gradients are reduced once per
    step, provided that this fits.
    """
    plans = [
        plan_memory(request.reduced(setting, work), policy, budget, work)
        for budget in request.budgets(setting.device)
        for work in [shape_of(budget)]
        for policy in request.policies()
    ]
    fitting = [plan for plan in plans if memory.holds(plan)]
    # with few units, one reduction per step may need less memory
    if not fitting and request.sync_each_batch is None:
        fitting = [plan for plan in map(_reduced_once, plans) if memory.holds(plan)]
    if not fitting:
        raise ValueError(_refusal(min(plans, key=lambda plan: plan.total), request, shape_of, memory))
    chosen = min(fitting, key=_step_time)
    if setting.device != "cuda":
        chosen = _preferred([plan for plan in fitting if plan.token_budget == chosen.token_budget], memory)
    if request.sync_each_batch is not None:
        return chosen
    once = _reduced_once(chosen)
    return once if memory.holds(once) else chosen


def _reduced_once(plan: MemoryPlan) -> MemoryPlan:
    """Return the plan with one gradient reduction per step; `plan` itself if that changes nothing."""
    if plan.work.micro_batches == 1 or not plan.setting.may_reduce_once:
        return plan
    setting = plan.setting.with_state(sync_each_batch=False)
    return plan_memory(setting, plan.recompute, plan.token_budget, plan.work)


def _step_time(plan: MemoryPlan) -> float:
    """Return the plan's time per token, to compare plans for the same device.

    On a GPU, the times are predicted seconds. Without a prediction, they are estimates relative to a plan
    without recomputing and without fixed work per micro-batch.
    """
    if plan.setting.device == "cuda" and not why_not(plan):
        gpu = plan.setting.gpu or gpu_named(_USUAL_GPU)
        assert gpu is not None
        return 1 / predict(plan, gpu).tokens_per_second
    fixed = _FIXED_TOKENS[plan.setting.device] / max(plan.work.tokens, 1)
    fixed *= _GATHER_FACTOR if plan.setting.world_size > 1 else 1
    again = _RECOMPUTE_SHARE[plan.recompute] * (_ADAPTER_FACTOR if plan.setting.adapters else 1)
    return 1 + again + fixed


def _preferred(fitting: list[MemoryPlan], memory: MemoryBudget) -> MemoryPlan:
    def is_small(plan: MemoryPlan) -> bool:
        of = memory.device if plan.setting.adapters else plan.state
        return plan.parts["activations"] <= _KEPT_SHARE * of

    small = [plan for plan in fitting if is_small(plan)]
    quick = [plan for plan in fitting if plan.recompute != "block"]
    if small and small[0].recompute != "block":
        return small[0]
    return quick[-1] if quick else fitting[0]


def _refusal(smallest: MemoryPlan, request: PlanRequest, shape_of: BatchShapeOf, memory: MemoryBudget) -> str:
    needs, there = smallest.total, memory.device
    if smallest.total <= memory.device and memory.host is not None:
        needs, there = smallest.host, memory.host
    where = " of host memory" if needs != smallest.total else ""
    head = (
        f"this run does not fit: it needs {size_text(needs)}{where} a rank (micro-batches of "
        f"{smallest.token_budget:,} tokens, recompute {smallest.recompute}), and {size_text(there)} is there"
    )
    offers = [
        f"{text} ({_sizes(plan)})"
        for text, plan in _changes(smallest, request, shape_of)
        if memory.holds(plan)
    ]
    if not offers:
        return f"{head}; no single change of flags makes it fit: take a smaller model or more memory"
    return f"{head}; what would fit: " + "; ".join(offers)


def _sizes(plan: MemoryPlan) -> str:
    return size_text(plan.total) + (
        f" and {size_text(plan.host)} of the host" if plan.setting.state.offload else ""
    )


def _changes(
    plan: MemoryPlan, request: PlanRequest, shape_of: BatchShapeOf
) -> Iterator[tuple[str, MemoryPlan]]:
    """Yield each flag change that may save memory, as text, and the plan that results."""
    setting, state = plan.setting, plan.setting.state
    work = shape_of(plan.token_budget)

    def planned(changed: EngineSettings, recompute: str = plan.recompute) -> MemoryPlan:
        return plan_memory(changed, recompute, plan.token_budget, work)

    def sharded(strategy: str, ranks: int) -> MemoryPlan:
        return planned(replace(setting.with_state(strategy=strategy), world_size=ranks, node_size=0))

    if plan.recompute != "block":
        yield "--recompute block", planned(setting, "block")
    if plan.token_budget > request.max_seqlen:
        least = request.max_seqlen
        yield f"--micro_batch_tokens {least}", plan_memory(setting, plan.recompute, least, shape_of(least))
    if setting.world_size > 1:
        for strategy in ("shard_grad_op", "full_shard"):
            if strategy != state.strategy:
                yield fsdp_flag(strategy, state.offload), sharded(strategy, setting.world_size)
    for flag, options in lower_precision(state):
        yield flag, planned(setting.with_state(**options))
    if not state.sync_each_batch:
        yield "--sync_each_batch True", planned(setting.with_state(sync_each_batch=True))
    narrow: dict[str, Any] = {
        name: choices[-1]
        for name, choices in state_flag_choices().items()
        if (state.sync_each_batch or name != "grad_dtype")
        and planned(setting.with_state(**{name: choices[-1]})).total < plan.total
    }
    if state.compute_dtype == "bfloat16" and state.replace(**narrow) != state:
        flags = " ".join(f"--{name} {dtype}" for name, dtype in narrow.items())
        yield flags, planned(setting.with_state(**narrow))
    if setting.device == "cuda" and not state.offload:
        name = state.strategy if setting.world_size > 1 else "full_shard"
        yield fsdp_flag(name, True), planned(setting.with_state(offload=True))
    for ranks in (2, 4, 8, 16, 32, 64):
        if ranks > setting.world_size:
            flag = fsdp_flag("full_shard", state.offload)
            yield f"{ranks} ranks with {flag}, each with as much memory", sharded("full_shard", ranks)


def plan_run_memory(
    args: TrainingArguments,
    setting: EngineSettings,
    rows: TokenRows,
    cost: tuple[float, ...],
    memory: MemoryBudget,
    previous: PreviousPlan | None = None,
) -> MemoryPlan:
    """Plan the memory of a training run on `rows`. ValueError if no plan fits into `memory`.

    Batch shapes come from packing the first steps of epoch 0; the longest rows of the data set bound all
    later steps. cost: linear and quadratic compute cost per conversation token. previous: choices to keep
    from an earlier plan.
    """
    from fastsft.planning.run_plan import longest_rows, packing_summary

    previous = previous or PreviousPlan(args.recompute_mode, args.micro_batch_tokens)
    summary = packing_summary(args, rows, max(args.token_budget, 1), cost)
    largest = longest_rows(args, rows)

    def shape_of(budget: int) -> BatchShape:
        packed = packing_summary(args, rows, budget, cost)
        step_tokens = max(packed.rank_step_tokens, largest.step_tokens)
        tokens = max(min(max(budget, largest.tokens), step_tokens), packed.micro_batch_tokens)
        grown = tokens / max(packed.micro_batch_tokens, 1)
        labels = max(int(packed.micro_batch_labels * grown), largest.labels)
        step_labels = min(step_tokens, max(packed.rank_step_labels, labels))
        micro_batches = -(-packed.micro_batches // max(packed.steps, 1))
        return BatchShape(
            tokens, min(tokens, labels), largest.tokens, step_tokens, step_labels, micro_batches
        )

    is_final = previous.sync_each_batch is not None
    sync = previous.sync_each_batch if is_final else args.sync_each_batch
    step_tokens = max(summary.rank_step_tokens, largest.tokens)
    request = PlanRequest(
        previous.recompute, previous.token_budget, largest.tokens, step_tokens, sync, is_final
    )
    return choose_plan(setting, request, shape_of, memory)
