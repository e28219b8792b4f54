"""Flag changes with which a run would fit into memory, in the order of their cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastsft.arguments.device_fields import SPLIT_MASTERS, lower_precision, state_flag_choices
from fastsft.arguments.engine_flags import fsdp_flag
from fastsft.planning.devices import size_text
from fastsft.planning.gpus import has_bfloat16
from fastsft.planning.memory_plan import BatchShape, EngineSettings, MemoryPlan, plan_memory
from fastsft.planning.plan_request import BatchShapeOf, MemoryBudget, PlanRequest, possible_plans

_LEAST_ROW = 256  # tokens below which no shorter row is offered
_MOST_RANKS = 64

# For each other training method, its flags and the settings that result, in one or more variants. The first
# variant that fits is offered.
Methods = Iterable[Sequence[tuple[str, EngineSettings]]]
_Offers = Iterator[tuple[str, MemoryPlan]]


@dataclass(frozen=True)
class Refused:
    """A run that does not fit. smallest: its smallest plan."""

    smallest: MemoryPlan
    request: PlanRequest
    shape_of: BatchShapeOf
    memory: MemoryBudget

    def message(self, methods: Methods) -> str:
        """Return the error message, with each flag change that makes the run fit.

        The order is that of their cost: the same numbers later, other rounding, transfers to the host,
        another training method, shorter rows, more devices.
        """
        plan, memory = self.smallest, self.memory
        needs, there = plan.total, memory.device
        if plan.total <= memory.device and memory.host is not None:
            needs, there = plan.host, memory.host
        where = " of host memory" if needs != plan.total else ""
        head = (
            f"this run does not fit: it needs {size_text(needs)}{where} a rank (micro-batches of "
            f"{plan.token_budget:,} tokens, recompute {plan.how_computed}), and {size_text(there)} is there"
        )
        if not (offers := self._without_kept_weights(list(methods))):
            return f"{head}; no single change of flags makes it fit: take a smaller model or more memory"
        return f"{head}; what would fit: " + "; ".join(offers)

    def _without_kept_weights(self, methods: Methods) -> list[str]:
        """Return the offers. If the run keeps weights in 8 bits, no offer does: that changes no bits."""
        if not self.request.keep_fp8_weights:
            return self._offers(methods) or self._without_limits(methods)
        flags, request = "--keep_fp8_weights False", replace(self.request, keep_fp8_weights=False)
        smallest = self._smallest_of(self.smallest.setting, request)
        if self.memory.holds(smallest):
            return [f"{flags} ({_sizes(smallest)})"]
        freed = replace(self, smallest=smallest, request=request)
        return freed._offers(methods, f"{flags} ") or freed._without_limits(methods, f"{flags} ")

    def _offers(self, methods: Methods, flags: str = "") -> list[str]:
        fitting = [(text, plan) for text, plan in self._changes(methods) if self.memory.holds(plan)]
        ranks = " ranks with "  # flags follow these words
        return [
            (text.replace(ranks, ranks + flags) if ranks in text else flags + text) + f" ({_sizes(plan)})"
            for text, plan in fitting
        ]

    def _without_limits(self, methods: Methods, before: str = "") -> list[str]:
        """Return the offers for a run that recomputes blocks and has the smallest micro-batches.

        before: flags that all offers begin with.
        """
        flags, request = before, self.request
        if request.recompute not in ("auto", "block"):
            flags, request = f"{flags}--recompute block ", replace(request, recompute="block")
        if request.token_budget is not None and request.token_budget > request.max_seqlen:
            request = replace(request, token_budget=request.max_seqlen)
            flags += f"--micro_batch_tokens {request.token_budget} "
        if flags == before:
            return []
        smallest = self._smallest_of(self.smallest.setting, request)
        if self.memory.holds(smallest):
            return [f"{flags.strip()} ({_sizes(smallest)})"]
        return replace(self, smallest=smallest, request=request)._offers(methods, flags)

    def _changes(self, methods: Methods) -> _Offers:
        yield from self._same_numbers()
        yield from (rounded := list(self._other_rounding()))
        if not any(self.memory.holds(plan) for _, plan in rounded):
            yield from self._eight_bits()
        state = self.smallest.setting.state
        if self.smallest.setting.device == "cuda" and not state.offload:
            name = state.strategy if self.smallest.setting.world_size > 1 else "full_shard"
            yield fsdp_flag(name, True), self._planned(offload=True)
        yield from self._other_methods(methods)
        yield from self._shared_context()
        yield from self._shorter_rows(self.smallest)
        yield from self._more_ranks()

    def _planned(self, **state: Any) -> MemoryPlan:
        return self._with(self.smallest.setting.with_state(**state))

    def _planned_if_possible(self, **dtypes: Any) -> MemoryPlan | None:
        """Return the plan with other dtypes; None if the optimizer does not have them."""
        try:
            return self._planned(**dtypes)
        except ValueError:
            return None

    def _with(self, setting: EngineSettings, recompute: str | None = None) -> MemoryPlan:
        plan = self.smallest
        work = self.shape_of(plan.token_budget)
        return self._first_fitting(setting, recompute or plan.recompute, plan.token_budget, work)

    def _first_fitting(
        self, setting: EngineSettings, recompute: str, budget: int, work: BatchShape
    ) -> MemoryPlan:
        """Return the first of the request's variants that fits; if none fits, that of `smallest`."""
        for variant in self.request.variants(setting):
            if recompute in self.request.policies(offload_inputs=variant.state.offload_inputs):
                plan = plan_memory(variant, recompute, budget, work)
                if plan.has_useful_tiles and self.memory.holds(plan):
                    return plan
        return plan_memory(setting, recompute, budget, work)

    def _smallest_of(self, setting: EngineSettings, request: PlanRequest | None = None) -> MemoryPlan:
        request, plans = request or self.request, []
        for variant in request.variants(setting):
            plans += possible_plans(variant, request, self.shape_of)
            if any(map(self.memory.holds, plans)):
                break
        return min(plans, key=lambda plan: (self.memory.lacks_of_host(plan), plan.total))

    def _same_numbers(self) -> _Offers:
        plan, setting = self.smallest, self.smallest.setting
        if plan.recompute != "block":
            yield "--recompute block", self._with(setting, "block")
        if plan.token_budget > (budget := self.request.max_seqlen):
            work = self.shape_of(budget)
            fitting = self._first_fitting(setting, plan.recompute, budget, work)
            yield f"--micro_batch_tokens {budget}", fitting
        for strategy in ("shard_grad_op", "full_shard") if setting.world_size > 1 else ():
            if strategy != setting.state.strategy:
                yield fsdp_flag(strategy, setting.state.offload), self._sharded(strategy, setting.world_size)

    def _other_rounding(self) -> _Offers:
        plan, state = self.smallest, self.smallest.setting.state
        for flag, options in lower_precision(state):
            changed = self._planned_if_possible(**options)
            if changed and (has_bfloat16(plan.setting.gpu) or options.get("compute_dtype") != "bfloat16"):
                yield flag, changed
        if not state.sync_each_batch:
            yield "--sync_each_batch True", self._planned(sync_each_batch=True)
        narrow: dict[str, Any] = {
            name: choices[-1]
            for name, choices in state_flag_choices().items()
            if (state.sync_each_batch or name != "grad_dtype")
            and (changed := self._planned_if_possible(**{name: choices[-1]}))
            and changed.total < plan.total
        }
        if state.compute_dtype == "bfloat16" and state.replace(**narrow) != state:
            flags = " ".join(f"--{name} {dtype}" for name, dtype in narrow.items())
            yield flags, self._planned(**narrow)

    def _eight_bits(self) -> _Offers:
        """Yield AdamW with moments of 8 bits, with as few other roundings as make it fit."""
        state, flags = self.smallest.setting.state, ""
        if state.optimizer != "adamw":
            return
        options: dict[str, Any] = {}
        steps: list[tuple[str, dict[str, Any]]] = [("--optim adamw_8bit", {"optimizer": "adamw_8bit"})]
        if state.grad_dtype == "float32":
            steps.append(("--grad_dtype bfloat16", {"grad_dtype": "bfloat16", "sync_each_batch": True}))
        if state.compute_dtype == "float32" and has_bfloat16(self.smallest.setting.gpu):
            steps.append(("--bf16 True", SPLIT_MASTERS))
        for flag, option in steps:
            flags, options = f"{flag} {flags}".strip(), {**options, **option}
            changed = self._planned_if_possible(**options)
            if changed and self.memory.holds(changed):
                yield flags, changed
                return

    def _other_methods(self, methods: Methods) -> _Offers:
        """Yield each method that fits; if there is none, the lightest with shorter rows."""
        lightest = None
        for variants in methods:
            for flags, setting in variants:
                lightest = flags, self._smallest_of(setting)
                if self.memory.holds(lightest[1]):
                    yield lightest
                    break
        if lightest and not self.memory.holds(lightest[1]):
            yield from self._shorter_rows(lightest[1], f"{lightest[0]} ")

    def _shared_context(self) -> _Offers:
        """Yield the fewest ranks that fit if they share the tokens of a micro-batch."""
        setting, plan = self.smallest.setting, self.smallest
        if setting.generic is not None or setting.state.context_parallel_size > 1:
            return
        for ranks in range(2, setting.world_size + 1):
            work = self.shape_of(plan.token_budget).shared_by(ranks)
            try:
                shared = setting.with_state(context_parallel_size=ranks)
                changed = self._first_fitting(shared, plan.recompute, work.tokens, work)
            except ValueError:  # the model's heads cannot be divided so
                continue
            if setting.world_size % ranks == 0 and self.memory.holds(changed):
                yield f"--context_parallel_size {ranks}, whose ranks share each row", changed
                return

    def _shorter_rows(self, plan: MemoryPlan, flags: str = "") -> _Offers:
        """Yield the longest rows, of those halved again and again, that make `plan` fit."""
        length, is_given = self.request.max_seqlen // 2, self.request.token_budget is not None
        ranks = plan.setting.state.context_parallel_size
        while length >= _LEAST_ROW:
            step = max(plan.work.step_tokens, length)
            work = BatchShape(length, length, length * ranks, step, step, 2 * -(-step // length))
            changed = self._first_fitting(plan.setting, plan.recompute, length, work)
            if self.memory.holds(changed):
                budget = f" --micro_batch_tokens {length}" if is_given else ""
                yield (
                    f"{flags}--model_max_length {length * ranks}{budget}, which cuts longer conversations",
                    changed,
                )
                return
            length //= 2

    def _more_ranks(self) -> _Offers:
        ranks = 2
        while ranks <= _MOST_RANKS:
            changed = self._sharded("full_shard", ranks)
            if ranks > self.smallest.setting.world_size and self.memory.holds(changed):
                flag = fsdp_flag("full_shard", self.smallest.setting.state.offload)
                yield f"{ranks} ranks with {flag}, each with as much memory", changed
                return
            ranks *= 2

    def _sharded(self, strategy: str, ranks: int) -> MemoryPlan:
        setting = self.smallest.setting.with_state(strategy=strategy)
        return self._with(replace(setting, world_size=ranks, node_size=0))


def _sizes(plan: MemoryPlan) -> str:
    uses_host = plan.setting.state.offload or plan.setting.state.offload_inputs
    host = f" and {size_text(plan.host)} of the host" if uses_host else ""
    return f"{size_text(plan.total)}{host}"
