"""Memory of a run, planned before it begins: tokens of a micro-batch and what backward computes again.

The bytes come from the engine's own description of itself (csrc/train/memory_plan.h).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fastsft.arguments.precision import state_flag_choices
from fastsft.arguments.sharding_arguments import fsdp_flag
from fastsft.planning.device_memory import size_text
from fastsft.planning.state_options import default_state_options

if TYPE_CHECKING:
    from fastsft import _C

# More tokens than this do not make matrix products faster; fewer are enough where a step has fewer.
USEFUL_TOKENS = {"cpu": 8192, "cuda": 16384}
# What backward computes again, as a share of a step, and the tokens that cost as much as what a micro-batch
# costs whatever its size: reading the weights, reading and writing the gradients (docs/decisions.md).
_COMPUTED_AGAIN = {"none": 0.0, "selective": 0.03, "gate_up": 0.15, "block": 0.33}
_TOKENS_OF_A_MICRO_BATCH = {"cpu": 32, "cuda": 256}
_GATHERED = 4  # times as much where every micro-batch gathers weights and reduces gradients
# Where everything fits, activations up to this share of parameters, gradients and optimizer state are worth
# the time that recomputing them would take (docs/decisions.md).
_WORTH_KEEPING = 0.25


@dataclass(frozen=True)
class Workload:
    """The most of one rank: tokens, labels and longest conversation of a micro-batch; the same of a step."""

    tokens: int = 0
    labels: int = 0
    longest: int = 0
    step_tokens: int = 0
    step_labels: int = 0
    micro_batches: int = 1

    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """The arguments of `_C.plan_memory` and `_C.Engine.reserve`."""
        return {
            "micro_batch": (self.tokens, self.labels, self.longest),
            "step": (self.step_tokens, self.step_labels, self.micro_batches),
        }

    @classmethod
    def full(cls, tokens: int, longest: int, micro_batches: int = 1) -> Workload:
        """Micro-batches of `tokens` tokens, all of them learned."""
        step = tokens * micro_batches
        return cls(tokens, tokens, min(longest, tokens), step, step, micro_batches)


@dataclass(frozen=True)
class Setting:
    """Settings that a rank's bytes depend on. node_size: ranks that hybrid strategies shard over, 0: all.

    called: what is known of a model that is not native, else None.
    adapters: the engine's AdapterOptions; None: the whole model is trained.
    """

    config_json: str
    state: _C.StateOptions = field(default_factory=default_state_options)
    world_size: int = 1
    device: str = "cpu"
    threads: int = 1
    node_size: int = 0
    called: Any = None
    adapters: Any = None

    def with_called(self, sizes: Any) -> Setting:
        """Of a called model: sizes has `layout` (_C.CalledModel) and `parts` (model/generic/memory.py)."""
        return replace(self, called=sizes)

    def with_state(self, **changes: Any) -> Setting:
        """The same with other state options."""
        return replace(self, state=self.state.replace(**changes))


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one rank by what they are for, and the choices that they follow from.

    parts and outside: on its device, which may be the CPU. host: page-locked with a GPU. work: what it is
    planned for.
    """

    setting: Setting
    recompute: str
    token_budget: int
    parts: dict[str, int]
    outside: int
    host: int = 0
    work: Workload = Workload()

    @property
    def total(self) -> int:
        """The most bytes of the device at one time."""
        return sum(self.parts.values()) + self.outside

    @property
    def state(self) -> int:
        """Parameters, gradients and optimizer state of the device."""
        return sum(self.parts[name] for name in ("parameters", "gradients", "optimizer"))

    @property
    def staging(self) -> int:
        """Bytes of host memory that this rank copies its part of a checkpoint to; not in `total`.

        They are those of offloaded float32 masters and moments: with a GPU page-locked, and each piece a
        power of two. Where they are not there, training waits for saves instead (checkpoint/saver.py).
        """
        held = self.setting.with_state(
            strategy="full_shard", compute_dtype="bfloat16", master_dtype="float32", offload=True
        )
        on_host, on_device = (
            plan_memory(replace(setting, node_size=0), "none", 0, Workload())
            for setting in (held, held.with_state(offload=False))
        )
        return on_host.parts["optimizer on the host"] + on_host.host - on_device.host


def plan_memory(setting: Setting, recompute: str, token_budget: int, work: Workload) -> MemoryPlan:
    """The plan for one recompute policy and one budget. ValueError for an unknown model or name."""
    from fastsft import _C

    plan = _C.plan_memory(
        setting.config_json,
        setting.state,
        adapters=setting.adapters or _C.AdapterOptions(),
        recompute=recompute,
        world_size=setting.world_size,
        node_size=setting.node_size,
        **work.shapes(),
        threads=setting.threads,
        on_cpu=setting.device == "cpu",
        model=None if setting.called is None else setting.called.layout,
    )
    parts = dict(plan.parts)
    if setting.called is not None:
        parts.update(setting.called.parts(recompute, work.tokens, work.labels, work.longest))
    return MemoryPlan(setting, recompute, token_budget, parts, plan.outside, plan.host, work)


WorkloadOf = Callable[[int], Workload]


@dataclass(frozen=True)
class Wish:
    """The choices that the flags leave to the plan: `recompute` may be "auto", `token_budget` None.

    longest: the longest conversation, which no budget can cut. step_tokens: of a rank in one step.
    """

    recompute: str = "auto"
    token_budget: int | None = None
    longest: int = 1
    step_tokens: int = 1

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
    policy that keeps activations below a quarter of the state is taken, else the last one before `block` that
    fits, else `block`. ValueError names what would fit when nothing does.
    """
    plans = [
        plan_memory(setting, policy, budget, work)
        for budget in wish.budgets(setting.device)
        for work in [workload(budget)]
        for policy in wish.policies()
    ]
    fitting = [plan for plan in plans if room.holds(plan)]
    if not fitting:
        raise ValueError(_refusal(min(plans, key=lambda plan: plan.total), wish, workload, room))
    fastest = min(fitting, key=_step_time)
    if setting.device == "cuda":
        return fastest
    return _preferred([plan for plan in fitting if plan.token_budget == fastest.token_budget])


def _step_time(plan: MemoryPlan) -> float:
    """Of a step, relative to one that recomputes nothing in a single endless micro-batch."""
    fixed = _TOKENS_OF_A_MICRO_BATCH[plan.setting.device] / max(plan.work.tokens, 1)
    fixed *= _GATHERED if plan.setting.world_size > 1 else 1
    return 1 + _COMPUTED_AGAIN[plan.recompute] + fixed


def _preferred(fitting: list[MemoryPlan]) -> MemoryPlan:
    small = [plan for plan in fitting if plan.parts["activations"] <= _WORTH_KEEPING * plan.state]
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
    if state.grad_dtype == "float32":
        yield "--grad_dtype bfloat16", planned(setting.with_state(grad_dtype="bfloat16"))
    narrow: dict[str, Any] = {name: choices[-1] for name, choices in state_flag_choices().items()}
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
    args: Any,
    setting: Setting,
    rows: Any,
    cost: tuple[float, ...],
    room: Room,
    kept: tuple[str, int | None] | None = None,
) -> MemoryPlan:
    """The plan of a training run on `rows` (TokenRows), from the packing of the first steps of epoch 0.

    What those steps do not show is bounded by the longest rows of all. kept: recompute policy and token
    budget that are settled already; a budget of None is chosen.
    """
    from fastsft.planning.run_plan import longest_rows, packing_summary

    recompute, token_budget = kept or (args.recompute_mode, args.micro_batch_tokens)
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

    wish = Wish(recompute, token_budget, largest.tokens, max(summary.rank_step_tokens, largest.tokens))
    return choose_plan(setting, wish, workload, room)
