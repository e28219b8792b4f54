"""The plan of a run: its rows, steps, micro-batches and memory."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from fastsft.lora.lighter import lighter_methods
from fastsft.model.attention_kernel import compile_attention
from fastsft.model.tuned_gemms import tune_gemms
from fastsft.planning.devices import rank_memory
from fastsft.planning.memory_plan import MemoryPlan
from fastsft.planning.plan_choice import plan_run_memory
from fastsft.planning.plan_request import MemoryBudget, PreviousPlan
from fastsft.planning.run_plan import RunPlan, packing_summary
from fastsft.ranks import process_group as launcher
from fastsft.ranks.comparison import compare
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell
from fastsft.trainer.agreed_inputs import agree_on_rows
from fastsft.trainer.rows import check_context

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.data.token_rows import TokenRows
    from fastsft.trainer.rows import RowReader
    from fastsft.trainer.setup import Setup


# State options that the memory plan chooses.
CHOSEN_OPTIONS = ("sync_each_batch", "tile_tokens", "offload_inputs", "keep_fp8_weights")


class Planner:
    """The planner of steps, micro-batches and memory for the rows of train_dataset.

    Without training data, `memory_plan` is None, and `rows`, `plan` and `memory` are not set.
    """

    rows: TokenRows
    plan: RunPlan
    memory: MemoryBudget

    def __init__(self, setup: Setup, reader: RowReader) -> None:
        self._setup, self._reader = setup, reader
        self.memory_plan: MemoryPlan | None = None
        self.token_budget = 0  # the most tokens of a micro-batch
        self._compared_rows: TokenRows | None = None  # the last rows that were compared between ranks

    def plan_first(self) -> None:
        """Read the data, and choose a token budget and the recomputed activations that fit into memory.

        Collective. ValueError if no plan fits into memory.
        """
        args = self._setup.args
        self.token_budget = args.token_budget
        if self._setup.train_dataset is None:
            return
        self.rows = self._reader.rows_of(self._setup.train_dataset)
        check_context(args, self.rows)
        self.compare_rows()
        self.plan = RunPlan.of(args, len(self.rows))
        host = None if args.device.type == "cpu" else rank_memory("cpu")
        self.memory = MemoryBudget(rank_memory(str(args.device)), host)
        self._choose(self.rows)

    def plan_again(self, rows: TokenRows) -> None:
        """Plan steps and micro-batches for `rows` with the current arguments. Keep the built engine."""
        assert self.memory_plan is not None
        plan = RunPlan.of(self._setup.args, len(rows))
        self._choose(rows, self._kept(self._setup.args.micro_batch_tokens, None, None))
        self.plan, self.rows = plan, rows

    def use_rows(self, rows: TokenRows) -> None:
        """Check that the model can train on `rows`, and plan for them. A ValueError keeps the old rows."""
        rows.check_for(self._setup.model, self._setup.engine.vocab_size)
        self.plan_again(rows)

    def refresh_rows(self) -> bool:
        """Plan again if a script has changed train_dataset on any rank; return True then. Collective."""
        if all(launcher.gather_objects(self.rows.is_current())):
            return False
        self.use_rows(self._reader.rows_of(self._setup.train_dataset))
        self.compare_rows()
        return True

    def read_by_item(self) -> TokenRows:
        """Switch to rows that are read from the data set item by item, and return them."""
        self.rows = self.rows.as_items()
        check_context(self._setup.args, self.rows)
        return self.rows

    def compare_rows(self) -> None:
        """Check that all ranks have the same training data, once for each set of rows. Collective."""
        if self._compared_rows is not self.rows:
            agree_on_rows("the training data", self._setup.train_dataset, self.rows)
            self._compared_rows = self.rows

    def compare(self) -> None:
        """Check that all ranks have the same plan, which also depends on a rank's free memory. Collective."""
        if launch().world_size == 1 or self.memory_plan is None:
            return
        derived = {
            "token_budget": self.token_budget, "recompute": self.recompute,
            **self.chosen,
        }  # fmt: skip
        facts = {"the plan of the run": {**dataclasses.asdict(self.plan), **derived}}
        compare("comparing plans", lambda: facts)

    def make_room(self, row: int, tokens: int) -> None:
        """Plan memory again if row number `row`, with `tokens` tokens, is longer than the planned rows.

        All ranks must pass the same row. ValueError names the row if it does not fit into memory.
        """
        planned = self.rows.longest
        if tokens <= planned:
            return
        rows = self.rows.with_bound(tokens)
        try:
            assert self.memory_plan is not None
            self._choose(rows, self._kept(self.token_budget, self.sync_each_batch, self.tile_tokens))
        except ValueError as error:
            raise ValueError(
                f"row {row} of train_dataset has {tokens:,} tokens, memory was planned for rows of "
                f"{planned:,}: {error}"
            ) from error
        self.rows = rows
        self._setup.engine.reserve(**self.memory_plan.work.shapes())
        tell(f"row {row} has {tokens:,} tokens, {planned:,} were planned for: memory is planned again")

    def reserve(self) -> None:
        """Reserve the engine's training memory, compile attention, and choose GEMM algorithms. Collective."""
        if self.memory_plan is None:
            return
        setup, work = self._setup, self.memory_plan.work
        setup.engine.reserve(**work.shapes())
        if setup.model.attention_kernel == "cudnn":
            compile_attention(setup.engine, self.packing().attention_shapes)
        if setup.args.tune_gemm:
            tell(
                tune_gemms(
                    setup.model, setup.engine, setup.args.device, work, setup.args.context_parallel_size
                )
            )

    @property
    def sync_each_batch(self) -> bool:
        """True if ranks reduce gradients in every micro-batch, False if once per step."""
        return self.memory_plan is None or self.memory_plan.setting.state.sync_each_batch

    @property
    def tile_tokens(self) -> int:
        """The most tokens for which norms, linear layers and MLPs compute at once; 0: a micro-batch."""
        return self.memory_plan.setting.state.tile_tokens if self.memory_plan else 0

    @property
    def chosen(self) -> dict[str, Any]:
        """The state options that the memory plan chose."""
        if self.memory_plan is None:
            return {}
        state = self.memory_plan.setting.state
        return {name: getattr(state, name) for name in CHOSEN_OPTIONS}

    @property
    def recompute(self) -> str:
        """Chosen value of --recompute, which says which activations the backward pass recomputes."""
        return self.memory_plan.recompute if self.memory_plan else "selective"

    def keep_plan(
        self, token_budget: int | None, sync_each_batch: bool | None, tile_tokens: int | None
    ) -> None:
        """Use the token budget, `sync_each_batch` and `tile_tokens` of a checkpoint's plan.

        token_budget: None keeps the current budget. sync_each_batch, tile_tokens: None keeps the current
        choice, unless another value changes; the planner then chooses again. ValueError if the plan does not
        fit into memory.
        """
        if self.memory_plan is None:
            return
        budget = self.token_budget if token_budget is None else token_budget
        if (
            budget != self.token_budget
            or sync_each_batch not in (None, self.sync_each_batch)
            or tile_tokens not in (None, self.tile_tokens)
        ):
            self._choose(self.rows, self._kept(budget, sync_each_batch, tile_tokens))

    def _kept(self, budget: int | None, sync_each_batch: bool | None, tiles: int | None) -> PreviousPlan:
        """Return the choices that the built engine cannot change, with these values for the others."""
        assert self.memory_plan is not None
        state = self.memory_plan.setting.state
        return PreviousPlan(
            self.recompute, budget, sync_each_batch, tiles, state.offload_inputs, state.keep_fp8_weights
        )

    def packing(self) -> _C.PackingSummary:
        """Return a summary of how the rows of the first steps are divided over ranks and micro-batches.

        csrc/data/step_source.h makes the division.
        """
        summary: _C.PackingSummary = packing_summary(
            self._setup.args, self.rows, self.token_budget, self._setup.model.conversation_cost()
        )
        return summary

    def _choose(self, rows: TokenRows, kept: PreviousPlan | None = None) -> None:
        args, model = self._setup.args, self._setup.model
        setting, cost = model.memory_setting(args), model.conversation_cost()
        methods = lighter_methods(model, setting) if kept is None else ()
        self.memory_plan = plan_run_memory(args, setting, rows, cost, self.memory, kept, methods)
        self.token_budget = self.memory_plan.token_budget
        model.follow_plan(self.chosen)
