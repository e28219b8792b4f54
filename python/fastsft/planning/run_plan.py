"""Computes how many steps a run has, and which rows belong to each step.

The rules are in docs/spec/trainer_semantics.md, sections 3 to 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.data.epoch_order import epoch_order
from fastsft.data.token_rows import TokenRows


@dataclass(frozen=True)
class RunPlan:
    """A run's numbers of micro-batches, steps, epochs and rows.

    micro_batches: transformers' micro-batches per rank in an epoch. max_steps, num_epochs: totals of the run.
    num_samples: rows that all ranks train on in the whole run, including repeated rows.
    """

    micro_batches: int
    steps_per_epoch: int
    max_steps: int
    num_epochs: int
    num_samples: float

    @classmethod
    def of(cls, args: TrainingArguments, num_rows: int) -> RunPlan:
        """Compute a run's numbers from the arguments and the row count.

        ValueError if there is no full batch.
        """
        if num_rows == 0:
            raise ValueError(
                "train_dataset is empty: expected at least one row, got 0; check the file that it was read "
                "from, and filters of the script"
            )
        batch, accumulation = args.train_batch_size, args.gradient_accumulation_steps
        micro_batches = _C.micro_batch_count(
            num_rows, batch, args.data_parallel_size, args.dataloader_drop_last
        )
        if micro_batches == 0:
            raise ValueError(
                f"{num_rows} rows make no full batch of {batch} rows on {args.data_parallel_size} ranks; "
                "leave out --dataloader_drop_last or lower --per_device_train_batch_size"
            )
        steps = math.ceil(micro_batches / accumulation)
        if args.max_steps > 0:
            samples = args.max_steps * batch * accumulation * args.data_parallel_size
            return cls(micro_batches, steps, args.max_steps, math.ceil(args.max_steps / steps), samples)
        max_steps = math.ceil(args.num_train_epochs * steps)
        return cls(
            micro_batches,
            steps,
            max_steps,
            math.ceil(args.num_train_epochs),
            num_rows * args.num_train_epochs,
        )


def step_source(
    args: TrainingArguments, rows: TokenRows, token_budget: int, cost: tuple[float, ...]
) -> _C.StepSource:
    """Return the step source, which divides the rows of a step among ranks and micro-batches.

    token_budget: the most tokens of a rank's micro-batch. cost: linear and quadratic compute cost per
    conversation token, by which the ranks' work is balanced.
    """
    return _C.StepSource(
        rows.lengths,
        rows.target_counts,
        batch_size=args.train_batch_size,
        drop_last=args.dataloader_drop_last,
        accumulation=args.gradient_accumulation_steps,
        label_counts=rows.label_counts,
        **_cut_by(args, token_budget, cost),
    )


def single_step(
    args: TrainingArguments,
    native: _C.TokenDataset,
    micro_batches: int,
    token_budget: int,
    cost: tuple[float, ...],
) -> _C.GroupPlan:
    """Plan this rank's part of a step with all rows in `native`.

    native: rows ordered by micro-batch, then by rank. micro_batches: number of transformers' micro-batches
    per rank; all have the same size. Other arguments are as in `step_source`.
    """
    source = _C.StepSource(
        native.lengths(),
        native.target_counts(),
        batch_size=len(native) // (micro_batches * args.data_parallel_size),
        accumulation=micro_batches,
        label_counts=native.label_counts(),
        **_cut_by(args, token_budget, cost),
    )
    return source.plan(np.arange(len(native), dtype=np.int64), 0, args.data_parallel_rank)


def _cut_by(args: TrainingArguments, token_budget: int, cost: tuple[float, ...]) -> dict[str, Any]:
    """Return the rules of the division. Ranks that share a context are one rank to `_C.StepSource`."""
    return {
        "world_size": args.data_parallel_size,
        "loss_norm": args.loss_norm,
        "average_tokens_across_devices": bool(args.average_tokens_across_devices),
        "micro_batch_tokens": token_budget * args.context_parallel_size,
        "cost": cost,
    }


_SUMMARY_STEPS = 200  # enough steps to estimate the packing of the whole run


def packing_summary(
    args: TrainingArguments, rows: TokenRows, token_budget: int, cost: tuple[float, ...]
) -> _C.PackingSummary:
    """Summarize how the first steps of epoch 0 are packed on all ranks (csrc/data/step_source.h)."""
    steps = RunPlan.of(args, len(rows)).steps_per_epoch
    source = step_source(args, rows, token_budget, cost)
    return source.summary(epoch_order(args, rows, 0), min(steps, _SUMMARY_STEPS))


class LongestRows(NamedTuple):
    """Upper bounds for all steps. tokens, labels: in a row. step_tokens: tokens of a rank in a step."""

    tokens: int
    labels: int
    step_tokens: int


def longest_rows(args: TrainingArguments, rows: TokenRows) -> LongestRows:
    """Return the bounds over all rows that have targets, as if one step drew the longest rows."""
    has_targets = rows.target_counts > 0
    lengths, labels = rows.lengths[has_targets], rows.target_counts[has_targets]
    if not len(lengths):
        return LongestRows(0, 0, 0)
    count = min(args.train_batch_size * args.gradient_accumulation_steps, len(lengths))
    step = np.partition(lengths, len(lengths) - count)[len(lengths) - count :]
    return LongestRows(int(lengths.max()), int(labels.max()), int(step.sum()))


class EpochGroups:
    """A rank's steps in an epoch. source: from `step_source`; None if `plan` is not called."""

    def __init__(
        self, args: TrainingArguments, rows: TokenRows, epoch: int, source: _C.StepSource | None
    ) -> None:
        self.args, self.source, self._rows = args, source, rows
        self._epoch = epoch
        self._micro_batches = _C.micro_batch_count(
            len(rows), args.train_batch_size, args.data_parallel_size, args.dataloader_drop_last
        )

    @cached_property
    def order(self) -> npt.NDArray[np.int64]:
        """Row order of the epoch, before the rows are divided among ranks."""
        return epoch_order(self.args, self._rows, self._epoch)

    def reference(self, step: int) -> list[list[list[int]]]:
        """Return the row numbers of `step` as transformers divides them: [rank][micro-batch][row]."""
        args = self.args
        return _C.reference_group(
            self.order, step, args.gradient_accumulation_steps, args.train_batch_size,
            args.data_parallel_size, args.dataloader_drop_last,
        )  # fmt: skip

    def input_tokens(self, step: int) -> int:
        """Return the tokens of all ranks in `step`, counted as include_num_input_tokens_seen says."""
        dealt = [row for rank in self.reference(step) for batch in rank for row in batch]
        if self.args.include_num_input_tokens_seen == "non_padding":
            return int(self._rows.lengths[dealt].sum())
        return int(self._rows.item_lengths()[dealt].sum())

    def done_after(self, step: int) -> int:
        """Return how many of transformers' micro-batches a rank has finished in the epoch after `step`."""
        return min((step + 1) * self.args.gradient_accumulation_steps, self._micro_batches)

    def size_of(self, step: int) -> int:
        """Return transformers' micro-batch count in `step`; an epoch's last step may have fewer."""
        return self.done_after(step) - step * self.args.gradient_accumulation_steps

    def plan(self, step: int) -> _C.GroupPlan:
        """Plan this rank's padding-free micro-batches of `step`, and their loss weights."""
        assert self.source is not None
        return self.source.plan(self.order, step, self.args.data_parallel_rank)
