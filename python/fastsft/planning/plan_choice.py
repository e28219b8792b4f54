"""The plan of a run: the fastest choice of micro-batch and recompute policy that fits, or what would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fastsft.arguments.precision import state_flag_choices
from fastsft.arguments.sharding_arguments import fsdp_flag
from fastsft.planning.device_memory import size_text
from fastsft.planning.gpus import gpu_named
from fastsft.planning.memory_plan import MemoryPlan, Setting, Workload, plan_memory
from fastsft.planning.time_model import predict, why_not

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.data.token_rows import TokenRows

# More tokens than this do not make matrix products faster; fewer are enough where a step has fewer.
USEFUL_TOKENS = {"cpu": 8192, "cuda": 16384}
# Where the time model has no prediction: what backward computes again, as a share of a step, and the tokens
# that cost as much as what a micro-batch costs whatever its size: reading the weights, reading and writing
# the gradients (docs/decisions.md).
_COMPUTED_AGAIN = {"none": 0.0, "selective": 0.03, "gate_up": 0.15, "block": 0.33}
_TOKENS_OF_A_MICRO_BATCH = {"cpu": 32, "cuda": 256}
_USUAL_GPU = "H100"  # whose proportions count where the GPU is not known
_GATHERED = 4  # times as much where every micro-batch gathers weights and reduces gradients
# Where everything fits, activations up to this share of parameters, gradients and optimizer state are worth
# the time that recomputing them would take; with adapters, whose state is small, of the memory that is there
# (docs/decisions.md).
_WORTH_KEEPING = 0.25
# A step that trains adapters has no weight gradients of the model: recomputing is more of it.
_MORE_OF_ADAPTERS = 1.5

WorkloadOf = Callable[[int], Workload]


@dataclass(frozen=True)
class Wish:
    """Choices that the flags leave open: `recompute` may be "auto", `token_budget` None.

    longest: the longest conversation, which no budget can cut. step_tokens: of a rank in one step.
    sync_each_batch: gradients are reduced in every micro-batch; None: the plan chooses. settled: not to be
    changed where no step accumulates.
    """

    recompute: str = "auto"
    token_budget: int | None = None
    longest: int = 1
    step_tokens: int = 1
    sync_each_batch: bool | None = None
    settled: bool = False

    def budgets(self, device: str) -> list[int]:
        """Budgets to try: the most useful one, then halves of it down to the longest conversation."""
        if self.token_budget is not None:
            return [self.token_budget]
        least = max(self.longest, 1)
        budgets = [max(least, min(USEFUL_TOKENS[device], self.step_tokens))]
        while budgets[-1] > least:
            budgets.append(max(least, budgets[-1] // 2))
        return budgets

    def policies(self) -> list[str]:
        """Recompute policies to try, the fastest first."""
        from fastsft import _C

        return _C.recompute_policies() if self.recompute == "auto" else [self.recompute]

    def reduced(self, setting: Setting, work: Workload) -> Setting:
        """`setting` with the reductions that the flags ask for; in every micro-batch where they do not."""
        once = self.sync_each_batch is False and setting.may_reduce_once
        return setting.with_state(sync_each_batch=not (once and (self.settled or work.micro_batches > 1)))


class Kept(NamedTuple):
    """Choices that are made already. token_budget, sync_each_batch: None for what is chosen again."""

    recompute: str
    token_budget: int | None = None
    sync_each_batch: bool | None = None


@dataclass(frozen=True)
class Room:
    """Bytes that a rank may take: of its device, and of the host with a GPU (None: not looked at)."""

    device: int
    host: int | None = None

    def holds(self, plan: MemoryPlan) -> bool:
        """True if the plan fits."""
        return plan.total <= self.device and self.holds_host(plan)

    def holds_host(self, plan: MemoryPlan) -> bool:
        """True if what the plan keeps on the host fits there."""
        return self.host is None or plan.host <= self.host


def choose_plan(setting: Setting, wish: Wish, workload: WorkloadOf, room: Room) -> MemoryPlan:
    """The fastest plan that fits into `room`.

    On a GPU that alone counts. On a CPU, whose memory others use, it chooses the budget; under it the first
    policy that keeps activations below a quarter of the state is taken (of the room, where adapters are
    trained), else the last one before `block` that fits, else `block`. ValueError names what would fit when
    nothing does. Gradients are reduced once a step where the flags leave that open, steps have several
    micro-batches, and it fits into what the choice leaves.
    """
    plans = [
        plan_memory(wish.reduced(setting, work), policy, budget, work)
        for budget in wish.budgets(setting.device)
        for work in [workload(budget)]
        for policy in wish.policies()
    ]
    fitting = [plan for plan in plans if room.holds(plan)]
    if not fitting and wish.sync_each_batch is None:  # of a few units whole gradients may be less
        fitting = [plan for plan in map(_reduced_once, plans) if room.holds(plan)]
    if not fitting:
        raise ValueError(_refusal(min(plans, key=lambda plan: plan.total), wish, workload, room))
    chosen = min(fitting, key=_step_time)
    if setting.device != "cuda":
        chosen = _preferred([plan for plan in fitting if plan.token_budget == chosen.token_budget], room)
    if wish.sync_each_batch is not None:
        return chosen
    once = _reduced_once(chosen)
    return once if room.holds(once) else chosen


def _reduced_once(plan: MemoryPlan) -> MemoryPlan:
    """The plan with one reduction a step; the same one where that would bring nothing."""
    if plan.work.micro_batches == 1 or not plan.setting.may_reduce_once:
        return plan
    setting = plan.setting.with_state(sync_each_batch=False)
    return plan_memory(setting, plan.recompute, plan.token_budget, plan.work)


def _step_time(plan: MemoryPlan) -> float:
    """Seconds of a token on a GPU, predicted; else of a step, relative to one micro-batch without end."""
    if plan.setting.device == "cuda" and not why_not(plan):
        gpu = plan.setting.gpu or gpu_named(_USUAL_GPU)
        assert gpu is not None
        return 1 / predict(plan, gpu).tokens_per_second
    fixed = _TOKENS_OF_A_MICRO_BATCH[plan.setting.device] / max(plan.work.tokens, 1)
    fixed *= _GATHERED if plan.setting.world_size > 1 else 1
    again = _COMPUTED_AGAIN[plan.recompute] * (_MORE_OF_ADAPTERS if plan.setting.adapters else 1)
    return 1 + again + fixed


def _preferred(fitting: list[MemoryPlan], room: Room) -> MemoryPlan:
    def is_worth_keeping(plan: MemoryPlan) -> bool:
        of = room.device if plan.setting.adapters else plan.state
        return plan.parts["activations"] <= _WORTH_KEEPING * of

    small = [plan for plan in fitting if is_worth_keeping(plan)]
    quick = [plan for plan in fitting if plan.recompute != "block"]
    if small and small[0].recompute != "block":
        return small[0]
    return quick[-1] if quick else fitting[0]


def _refusal(smallest: MemoryPlan, wish: Wish, workload: WorkloadOf, room: Room) -> str:
    needs, there = smallest.total, room.device
    if smallest.total <= room.device and room.host is not None:
        needs, there = smallest.host, room.host
    where = " of host memory" if needs != smallest.total else ""
    head = (
        f"this run does not fit: it needs {size_text(needs)}{where} a rank (micro-batches of "
        f"{smallest.token_budget:,} tokens, recompute {smallest.recompute}), and {size_text(there)} is there"
    )
    offers = [
        f"{text} ({_sizes(plan)})" for text, plan in _changes(smallest, wish, workload) if room.holds(plan)
    ]
    if not offers:
        return f"{head}; no single change of flags makes it fit: take a smaller model or more memory"
    return f"{head}; what would fit: " + "; ".join(offers)


def _sizes(plan: MemoryPlan) -> str:
    return size_text(plan.total) + (
        f" and {size_text(plan.host)} of the host" if plan.setting.state.offload else ""
    )


def _changes(plan: MemoryPlan, wish: Wish, workload: WorkloadOf) -> Iterator[tuple[str, MemoryPlan]]:
    """Single changes of flags, and the plan with each."""
    setting, state = plan.setting, plan.setting.state
    work = workload(plan.token_budget)

    def planned(changed: Setting, recompute: str = plan.recompute) -> MemoryPlan:
        return plan_memory(changed, recompute, plan.token_budget, work)

    def sharded(strategy: str, ranks: int) -> MemoryPlan:
        return planned(replace(setting.with_state(strategy=strategy), world_size=ranks, node_size=0))

    if plan.recompute != "block":
        yield "--recompute block", planned(setting, "block")
    if plan.token_budget > wish.longest:
        budget = wish.longest
        yield (
            f"--micro_batch_tokens {budget}",
            plan_memory(setting, plan.recompute, budget, workload(budget)),
        )
    if setting.world_size > 1:
        for strategy in ("shard_grad_op", "full_shard"):
            if strategy != state.strategy:
                yield fsdp_flag(strategy, state.offload), sharded(strategy, setting.world_size)
    if state.compute_dtype == "float32":
        yield "--bf16 True", planned(setting.with_state(compute_dtype="bfloat16", master_dtype="split"))
    if state.compute_dtype == "bfloat16" and state.master_dtype == "float32":
        yield "--master_dtype split", planned(setting.with_state(master_dtype="split"))
    if not state.sync_each_batch:
        yield "--sync_each_batch True", planned(setting.with_state(sync_each_batch=True))
    if state.grad_dtype == "float32" and state.sync_each_batch:
        yield "--grad_dtype bfloat16", planned(setting.with_state(grad_dtype="bfloat16"))
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


def plan_of_run(
    args: TrainingArguments,
    setting: Setting,
    rows: TokenRows,
    cost: tuple[float, ...],
    room: Room,
    kept: Kept | None = None,
) -> MemoryPlan:
    """The plan of a training run on `rows` (TokenRows), from the packing of the first steps of epoch 0.

    What those steps do not show is bounded by the longest rows of all. kept: what is settled already.
    """
    from fastsft.planning.run_plan import longest_rows, packing_summary

    kept = kept or Kept(args.recompute_mode, args.micro_batch_tokens)
    summary = packing_summary(args, rows, max(args.token_budget, 1), cost)
    largest = longest_rows(args, rows)

    def workload(budget: int) -> Workload:
        packed = packing_summary(args, rows, budget, cost)
        step_tokens = max(packed.rank_step_tokens, largest.step_tokens)
        tokens = max(min(max(budget, largest.tokens), step_tokens), packed.micro_batch_tokens)
        grown = tokens / max(packed.micro_batch_tokens, 1)
        labels = max(int(packed.micro_batch_labels * grown), largest.labels)
        return Workload(
            tokens,
            min(tokens, labels),
            largest.tokens,
            step_tokens,
            min(step_tokens, max(packed.rank_step_labels, labels)),
            -(-packed.micro_batches // max(packed.steps, 1)),
        )

    settled = kept.sync_each_batch is not None
    wish = Wish(
        kept.recompute,
        kept.token_budget,
        largest.tokens,
        max(summary.rank_step_tokens, largest.tokens),
        kept.sync_each_batch if settled else args.sync_each_batch,
        settled,
    )
    return choose_plan(setting, wish, workload, room)
