"""How long a run is, and which rows each optimizer step takes (trainer_semantics.md, sections 3 to 6)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.token_rows import TokenRows


@dataclass(frozen=True)
class RunPlan:
    """Counts of a run: micro-batches and optimizer steps an epoch, steps and epochs in all."""

    micro_batches: int
    steps_per_epoch: int
    max_steps: int
    num_epochs: int
    num_samples: float

    @classmethod
    def of(cls, args: TrainingArguments, num_rows: int) -> RunPlan:
        """From the arguments and the size of the data set. ValueError when there is nothing to train on."""
        batch, accumulation = args.train_batch_size, args.gradient_accumulation_steps
        micro_batches = _C.micro_batch_count(num_rows, batch, args.world_size, args.dataloader_drop_last)
        if micro_batches == 0:
            raise ValueError(
                f"{num_rows} rows make no full batch of {batch} rows on {args.world_size} ranks; "
                "leave out --dataloader_drop_last or lower --per_device_train_batch_size"
            )
        steps = math.ceil(micro_batches / accumulation)
        if args.max_steps > 0:
            samples = args.max_steps * batch * accumulation * args.world_size
            return cls(micro_batches, steps, args.max_steps, math.ceil(args.max_steps / steps), samples)
        max_steps = math.ceil(args.num_train_epochs * steps)
        return cls(
            micro_batches,
            steps,
            max_steps,
            math.ceil(args.num_train_epochs),
            num_rows * args.num_train_epochs,
        )


class EpochGroups:
    """The accumulation groups of one epoch: every rank knows the rows of all ranks."""

    def __init__(self, args: TrainingArguments, rows: TokenRows, epoch: int) -> None:
        self.args, self.rows = args, rows
        seed = args.seed if args.data_seed is None else args.data_seed
        order = _C.epoch_order(len(rows), seed, epoch)
        self._ranks = [
            _C.rank_micro_batches(
                order, args.train_batch_size, rank, args.world_size, args.dataloader_drop_last
            )
            for rank in range(args.world_size)
        ]

    def reference(self, step: int) -> list[list[npt.NDArray[np.int64]]]:
        """Rows of optimizer step `step`: [rank][micro-batch][row]; the last one may be shorter."""
        size = self.args.gradient_accumulation_steps
        return [batches[step * size : (step + 1) * size] for batches in self._ranks]

    def done_after(self, step: int) -> int:
        """Micro-batches of a rank that are done after optimizer step `step`."""
        return min((step + 1) * self.args.gradient_accumulation_steps, len(self._ranks[0]))

    def plan(self, step: int) -> Any:
        """This rank's padding-free micro-batches and loss weights of optimizer step `step`."""
        return _C.plan_group(
            self.rows.lengths,
            self.rows.target_counts,
            [[batch.tolist() for batch in batches] for batches in self.reference(step)],
            self.args.process_index,
            self.args.loss_norm,
            bool(self.args.average_tokens_across_devices),
            micro_batch_tokens=self.args.token_budget,
        )

    def step_rows(self, step: int) -> npt.NDArray[np.int64]:
        """Rows of all ranks of optimizer step `step`, repeated ones included."""
        return np.concatenate([batch for batches in self.reference(step) for batch in batches])
