"""`--save_merged`: at the end of a run the merged model, next to the adapter that was saved."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fastsft.arguments.lora import LoraArguments
from fastsft.arguments.sizes import parse_size
from fastsft.lora.adapted_model import AdaptedModel
from fastsft.lora.merge import merge_adapter
from fastsft.lora.modules import HEAD
from fastsft.model.family import ties_embeddings
from fastsft.ranks.agreement import Agreement
from fastsft.ranks.save_place import writes_small_files
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft.arguments.training import TrainingArguments
    from fastsft.model.causal_lm import CausalLM

FOLDER = "merged"


def check_merged_place(output_dir: str | Path | None, lora: LoraArguments, model: CausalLM) -> None:
    """Before training: ValueError where --save_merged could not write its folder, or not merge."""
    place = Path(output_dir or ".") / FOLDER
    if not lora.save_merged:
        return
    if os.path.lexists(place):
        raise ValueError(
            f"--save_merged: {place} is there already, and nothing is overwritten; move it away, or choose "
            "another --output_dir"
        )
    adapted = [each.module for each in model.targets.adapters] if isinstance(model, AdaptedModel) else []
    if ties_embeddings(model.config) and HEAD in adapted:
        raise ValueError(f"--save_merged: {HEAD} has an adapter and is tied to the embedding: leave it out")


class MergingTrainer(Protocol):
    """A Trainer of a model with adapters."""

    @property
    def args(self) -> TrainingArguments: ...
    @property
    def model(self) -> CausalLM: ...
    @property
    def progress(self) -> Phases: ...


class Phases(Protocol):
    """A sink for the phases of a run."""

    def phase(self, name: str, detail: str, /) -> AbstractContextManager[object]: ...


def save_merged(trainer: MergingTrainer) -> None:
    """Merge the adapter that is saved in `output_dir` into its base model; collective.

    The ranks that write do it. Weights have --save_dtype and are split at --max_shard_size.
    ValueError as `merge_adapter`.
    """
    args, model = trainer.args, trainer.model
    folder = Path(args.output_dir or ".")
    dtype = None if args.save_dtype == "auto" else args.save_dtype
    agreement = Agreement(f"merging into {folder / FOLDER}")
    with trainer.progress.phase("merging", f"the model to {folder / FOLDER}"):
        agreement.attempt_if(
            writes_small_files(args),
            lambda: merge_adapter(
                folder,
                folder / FOLDER,
                model.source_directory,
                dtype=dtype,
                max_shard_size=parse_size(args.max_shard_size),
            ),
        )
        agreement.settle(None)
    tell(f"{folder / FOLDER}: the base model with the adapter merged into it")
