"""The rows of each optimizer step: native ones, or those that a data set gives when it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fastsft.arguments import TrainingArguments
from fastsft.data.batch_reads import EpochReads, ReadBatch, check_ids, draw_loader_seed, join_batches
from fastsft.data.item_rules import ItemRules
from fastsft.data.token_rows import TokenRows
from fastsft.planning.run_plan import EpochGroups, single_step
from fastsft.ranks.agreement import Agreement

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.model.causal_lm import CausalLM


class StepRows(NamedTuple):
    """The rows of one step: a native data set, and which of its rows this rank takes (_C.GroupPlan).

    `input_tokens`: as include_num_input_tokens_seen counts them. `padded_tokens`: of all rows of the step
    with their padding. `padded_length`: of one row.
    """

    native: _C.TokenDataset
    plan: _C.GroupPlan
    input_tokens: int
    padded_tokens: int
    padded_length: int


class NativeEpoch:
    """The steps of one epoch over native rows. source: of `step_source`.

    goes_on: the global generators are as a checkpoint within the epoch has them, after its loader's draw.
    """

    def __init__(
        self,
        args: TrainingArguments,
        rows: TokenRows,
        epoch: int,
        source: _C.StepSource,
        *,
        goes_on: bool = False,
    ) -> None:
        self._args, self._rows = args, rows
        self.groups = EpochGroups(args, rows, epoch, source)
        self._taken: int | None = None
        if not goes_on:
            draw_loader_seed()

    def take(self, step: int) -> StepRows:
        """Those of `step`. ValueError when a script has changed the data set meanwhile."""
        if not self._args.dataloader_num_workers:  # worker processes have a copy of their own
            self._rows.take(self._read_by(step))
        plan, length = self.groups.plan(step), self._rows.padded_length
        is_counted = self._args.include_num_input_tokens_seen != "no"
        tokens = self.groups.input_tokens(step) if is_counted else 0
        assert self._rows.native is not None  # else the epoch is a ReadEpoch
        return StepRows(self._rows.native, plan, tokens, plan.num_conversations * length, length)

    def _read_by(self, step: int) -> list[int]:
        """Rows of this rank that a loader reads until it gives `step`: of the batch after it too."""
        rank, groups = self._args.process_index, self.groups
        batches = groups.reference(step)[rank]
        if self._taken == step - 1:
            batches = batches[1:]
        self._taken = step
        if groups.size_of(step + 1) > 0:
            batches = [*batches, groups.reference(step + 1)[rank][0]]
        return [row for batch in batches for row in batch]


class StepCut(NamedTuple):
    """The cut of a step's rows: tokens of a micro-batch, cost of a conversation; the model that takes them.

    make_room: told the longest row of each step before it is computed, its number and its tokens.
    """

    token_budget: int
    cost: tuple[float, ...]
    model: CausalLM
    make_room: Callable[[int, int], None]


class ReadEpoch:
    """The steps of one epoch whose rows are read as it goes."""

    def __init__(
        self,
        args: TrainingArguments,
        groups: EpochGroups,
        reads: EpochReads,
        cut: StepCut,
        rules: ItemRules | None,
    ) -> None:
        self._args, self.groups, self._reads, self._cut, self._rules = args, groups, reads, cut, rules

    def take(self, step: int) -> StepRows:
        """Read those of `step`, and the batch after; collective. ValueError names a row that is faulty."""
        count = self.groups.size_of(step)
        batches = gather_batches(lambda: [self._reads.take() for _ in range(count)])
        native, numbers = join_batches(batches, self._rules)
        model = self._cut.model
        assert model.engine is not None  # which computes the rows
        check_ids(native, numbers, model.engine.vocab_size)
        model.check_rows(native, numbers)
        lengths = native.lengths()
        longest = int(np.argmax(lengths))
        self._cut.make_room(numbers[longest], int(lengths[longest]))
        plan = single_step(self._args, native, count, self._cut.token_budget, self._cut.cost)
        widths = [(len(batch.items), batch.width) for ranks in batches for batch in ranks]
        padded = sum(rows * width for rows, width in widths)
        seen = {"no": 0, "non_padding": int(lengths.sum())}
        tokens = seen.get(str(self._args.include_num_input_tokens_seen), padded)
        return StepRows(native, plan, tokens, padded, max(width for _, width in widths))


def gather_batches(read: Callable[[], list[ReadBatch]]) -> list[list[ReadBatch]]:
    """Batches that every rank reads, [micro-batch][rank]; collective. An error of one rank is one of all."""
    agreement = Agreement("reading the data")
    mine = agreement.attempt(read)
    ranks = agreement.settle(mine)
    return [list(batches) for batches in zip(*(batches or [] for batches in ranks), strict=True)]
