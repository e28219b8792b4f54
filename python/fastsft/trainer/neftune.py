"""Noise on embeddings (docs/spec/trainer_arguments.md, section 2) and the seed of dropout, step by step."""

from __future__ import annotations

import math
from typing import Any

from fastsft.arguments import TrainingArguments


def noise_options(args: TrainingArguments, padded_length: int, hidden_size: int, step: int) -> dict[str, Any]:
    """`noise` and `noise_seed` of Engine.begin_step for optimizer step `step`; {} without noise.

    Uniform in +-alpha / sqrt(padded_length * hidden_size): rows have the length that the Trainer pads to. The
    seed is of the run's seed, the step and the rank, so that a resumed run draws the same numbers.
    """
    if not args.neftune_noise_alpha:
        return {}
    seed = ((args.seed % 2**24) * 2**24 + step % 2**24) * 2**12 + args.process_index % 2**12
    return {
        "noise": args.neftune_noise_alpha / math.sqrt(padded_length * hidden_size),
        "noise_seed": seed,
    }


def dropout_seed(args: TrainingArguments, step: int) -> int:
    """`dropout_seed` of Engine.begin_step: of the run's seed and the step, the same on every rank."""
    return int((args.seed % 2**24) * 2**24 + step % 2**24)
