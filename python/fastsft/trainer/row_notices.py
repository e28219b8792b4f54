"""Notices about rows and arguments for which transformers, or some of its versions, computes other losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastsft.arguments import TrainingArguments
from fastsft.arguments.from_transformers import how_to_set
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.model.causal_lm import CausalLM


def finds_packed(model: CausalLM, args: TrainingArguments, *, training: bool) -> bool:
    """True if restarting position_ids separate a row's packed sequences, which then do not see each other.

    transformers 4.57 separates packed sequences only without attention mask and without cache. It has no
    cache if `use_cache` is False in the model's configuration, or in training with gradient checkpointing.
    """
    if not model.config.get("use_cache", True):
        return True
    own = getattr(getattr(model, "module", None), "is_gradient_checkpointing", False)
    return training and bool(args.gradient_checkpointing or own)


def tell_differences(args: TrainingArguments) -> None:
    """Print a message for each given argument with which transformers 4.57 computes other losses."""
    steps = args.gradient_accumulation_steps
    ranks = args.data_parallel_size if args.average_tokens_across_devices else 1
    if args.label_smoothing_factor and steps * ranks > 1:
        of_ranks = f" on each of {ranks} ranks" if ranks > 1 else ""
        tell(
            "--label_smoothing_factor: the loss of a step is divided by the tokens of the whole step; "
            f"transformers 4.57 adds up the means of {steps} micro-batch{'es' * (steps > 1)}{of_ranks} "
            f"undivided: its losses and gradients are {steps * ranks} times as large"
        )
    if args.neftune_noise_alpha:
        tell("--neftune_noise_alpha: the noise has transformers' size, and other random numbers")


class RowNotices:
    """Two notices, each printed at most once per run.

    They are about rows with a learned label at position 0, and about packed rows whose sequences attend to
    each other. find_packed: result of `finds_packed`.
    """

    def __init__(self, args: TrainingArguments) -> None:
        self._args = args
        self._counts_labels = args.loss_norm != "micro_batch"
        self._looks_for_packed = True
        self.find_packed = False

    def look_at(self, native: _C.TokenDataset) -> None:
        """Print the notices that apply to `native`, the rows of the whole data set or of one step."""
        if self._counts_labels:
            first = int(np.count_nonzero(native.label_counts() > native.target_counts()))
            if first:
                self._counts_labels = False
                tell(_first_labels(first, self._args))
        if self._looks_for_packed and not self.find_packed:
            packed = int(native.num_packed())
            if packed:
                self._looks_for_packed = False
                tell(
                    f"position_ids of {packed:,} rows restart, but tokens see those before: transformers "
                    "4.57 looks for packed sequences only without a cache; "
                    "model.config.use_cache = False keeps them apart"
                )


# --loss_norm -> the other rule, and what holds here
_RULES = {
    "global_tokens": ("global_labels", "here they do not"),
    "global_labels": ("global_tokens", "here they do"),
}


def _first_labels(count: int, args: TrainingArguments) -> str:
    other, here = _RULES[args.loss_norm]
    return (
        f"{count:,} rows learn their first token (as with labels = input_ids), which no token before it "
        "predicts, so that it adds nothing to the loss; in transformers 4.46 to early 5.x such tokens count "
        f"in the number by which the loss is divided, in later releases they do not, and {here}: "
        f"{how_to_set(args, 'loss_norm', other)} is the other rule, and with labels[0] = -100 both agree"
    )
