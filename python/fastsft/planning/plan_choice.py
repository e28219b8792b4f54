"""Chooses the memory plan: the fastest token budget and recompute policy that fit into memory.

If no plan fits, the error names flag changes with which a plan would fit.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fastsft.planning.gpus import cannot_run, gpu_named
from fastsft.planning.memory_plan import BatchShape, EngineSettings, MemoryPlan, plan_memory
from fastsft.planning.offers import Methods, Refused
from fastsft.planning.plan_request import (
    BatchShapeOf,
    MemoryBudget,
    PlanRequest,
    PreviousPlan,
    possible_plans,
)
from fastsft.planning.time_model import predict, why_not

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.data.token_rows import TokenRows

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


def choose_plan(
    setting: EngineSettings,
    request: PlanRequest,
    shape_of: BatchShapeOf,
    memory: MemoryBudget,
    methods: Methods = (),
) -> MemoryPlan:
    """Return the fastest plan that fits. ValueError if none fits, with flag changes that would fit.

    shape_of: returns the batch shape for a token budget. methods: other training methods that the error may
    offer. ValueError also for a GPU on which the run cannot compute.

    On a GPU, only speed decides. On a CPU, whose memory is shared with other programs, speed decides only the
    token budget. The recompute policy is then the fastest other than `block` whose activations take at most a
    quarter of the bytes of parameters, gradients and optimizer state (with adapters: of the memory budget).
    If no policy does, it is the slowest fitting policy other than `block`, or else `block`.

    Only if nothing fits otherwise, inputs of blocks are offloaded to the host, MLPs are computed in tiles, or
    both.

    If the user left sync_each_batch open and a step has several micro-batches, gradients are reduced once per
    step, provided that this fits. If the user left keep_fp8_weights open, weights are kept in 8 bits on a
    GPU, provided that this fits as well: it changes no bits and no micro-batch.
    """
    _check_gpu(setting)
    tried: list[MemoryPlan] = []
    fitting: list[MemoryPlan] = []
    for variant in request.variants(setting):
        plans = possible_plans(variant, request, shape_of)
        if request.tile_tokens is None:
            plans = [plan for plan in plans if plan.has_useful_tiles]
        tried += plans
        if fitting := _fitting(plans, request, memory):
            break
    if not fitting:
        smallest = min(tried, key=lambda plan: (memory.lacks_of_host(plan), plan.total))
        raise ValueError(Refused(smallest, request, shape_of, memory).message(methods))
    chosen = min(fitting, key=_step_time)
    if setting.device != "cuda":
        chosen = _preferred([plan for plan in fitting if plan.token_budget == chosen.token_budget], memory)
    if request.sync_each_batch is None and memory.holds(once := _reduced_once(chosen)):
        chosen = once
    if request.keep_fp8_weights is None and memory.holds(kept := _with_kept_weights(chosen)):
        chosen = kept
    return chosen


def _fitting(plans: list[MemoryPlan], request: PlanRequest, memory: MemoryBudget) -> list[MemoryPlan]:
    fitting = [plan for plan in plans if memory.holds(plan)]
    # with few units, one reduction per step may need less memory
    if not fitting and request.sync_each_batch is None:
        fitting = [plan for plan in map(_reduced_once, plans) if memory.holds(plan)]
    return fitting


def _check_gpu(setting: EngineSettings) -> None:
    """Raise ValueError if the setting's GPU cannot compute the run."""
    if setting.gpu is None:
        return
    config = json.loads(setting.config_json)
    size = (
        None
        if setting.generic
        else config.get("head_dim") or (config["hidden_size"] // config["num_attention_heads"])
    )
    if reason := cannot_run(setting.gpu, setting.state.compute_dtype, size, setting.state.fp8):
        raise ValueError(reason)


def _reduced_once(plan: MemoryPlan) -> MemoryPlan:
    """Return the plan with one gradient reduction per step; `plan` itself if that changes nothing."""
    if plan.work.micro_batches == 1 or not plan.setting.may_reduce_once:
        return plan
    setting = plan.setting.with_state(sync_each_batch=False)
    return plan_memory(setting, plan.recompute, plan.token_budget, plan.work)


def _with_kept_weights(plan: MemoryPlan) -> MemoryPlan:
    """Return the plan with weights kept in 8 bits; `plan` itself if that is not possible or saves no time."""
    setting = plan.setting
    if setting.device != "cuda" or not setting.may_keep_fp8_weights:
        return plan
    kept = plan_memory(
        setting.with_state(keep_fp8_weights=True), plan.recompute, plan.token_budget, plan.work
    )
    return kept if why_not(plan) or _step_time(kept) < _step_time(plan) else plan


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


def plan_run_memory(
    args: TrainingArguments,
    setting: EngineSettings,
    rows: TokenRows,
    cost: tuple[float, ...],
    memory: MemoryBudget,
    previous: PreviousPlan | None = None,
    methods: Methods = (),
) -> MemoryPlan:
    """Plan the memory of a training run on `rows`. ValueError if no plan fits into `memory`.

    Batch shapes come from packing the first steps of epoch 0; the longest rows of the data set bound all
    later steps. cost: linear and quadratic compute cost per conversation token. previous: choices to keep
    from an earlier plan. methods: other training methods that the error may offer.
    """
    from fastsft.planning.run_plan import longest_rows, packing_summary

    previous = previous or PreviousPlan(args.recompute_mode, args.micro_batch_tokens)
    tiles = args.tile_tokens if previous.tile_tokens is None else previous.tile_tokens
    offloads = args.offload_inputs if previous.offload_inputs is None else previous.offload_inputs
    keeps = args.keep_fp8_weights if previous.keep_fp8_weights is None else previous.keep_fp8_weights
    summary = packing_summary(args, rows, max(args.token_budget, 1), cost)
    largest = longest_rows(args, rows)

    ranks = args.context_parallel_size

    def shape_of(budget: int) -> BatchShape:
        packed = packing_summary(args, rows, budget, cost)
        step_tokens = max(packed.rank_step_tokens, largest.step_tokens)
        tokens = max(min(max(budget * ranks, largest.tokens), step_tokens), packed.micro_batch_tokens)
        grown = tokens / max(packed.micro_batch_tokens, 1)
        labels = max(int(packed.micro_batch_labels * grown), largest.labels)
        return BatchShape(
            tokens,
            min(tokens, labels),
            largest.tokens,
            step_tokens,
            min(step_tokens, max(packed.rank_step_labels, labels)),
            -(-packed.micro_batches // max(packed.steps, 1)),
        ).shared_by(ranks)

    is_final = previous.sync_each_batch is not None
    request = PlanRequest(
        previous.recompute,
        previous.token_budget,
        -(-largest.tokens // ranks),
        -(-max(summary.rank_step_tokens, largest.tokens) // ranks),
        previous.sync_each_batch if is_final else args.sync_each_batch,
        is_final,
        tiles,
        offloads,
        keeps,
    )
    return choose_plan(setting, request, shape_of, memory, methods)
