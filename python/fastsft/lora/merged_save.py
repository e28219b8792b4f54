"""`--save_merged`: at the end of a run the merged model, next to the adapter that was saved."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fastsft.arguments.lora import LoraArguments
from fastsft.arguments.sizes import parse_size
from fastsft.lora.adapted_model import AdaptedModel
from fastsft.lora.adapter_files import WEIGHTS_NAME
from fastsft.lora.merge import merge_adapter
from fastsft.lora.modules import HEAD
from fastsft.model.conversion import is_converted
from fastsft.model.directory import check_output_directory
from fastsft.model.family import ties_embeddings
from fastsft.ranks.agreement import Agreement
from fastsft.ranks.save_place import writes_small_files
from fastsft.runtime.messages import tell
from fastsft.runtime.output_files import Digest, digest_of, digest_of_file, replace_file
from fastsft.runtime.regular_files import read_json_object

if TYPE_CHECKING:
    from fastsft.arguments.training import TrainingArguments
    from fastsft.model.causal_lm import CausalLM

FOLDER = "merged"
_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
_RECORD, _KEY = ".fastsft-merged.json", "manifest"  # of what --save_merged writes into the folder
_BEFORE = "before"  # what it had written, until the new model is there


def check_merged_place(output_dir: str | Path | None, lora: LoraArguments, model: CausalLM) -> None:
    """Before training: ValueError where --save_merged could not write its folder, or not merge.

    A merged model that --save_merged wrote there is replaced at the end, another one that fastsft wrote is
    put aside then, and one that the run begins with is refused.
    """
    place = Path(output_dir or ".") / FOLDER
    if not lora.save_merged:
        return
    if os.path.lexists(place):
        check_output_directory(model.source_directory, place)
        if not is_converted(place):
            raise ValueError(
                f"--save_merged: {place} is there already, and fastsft did not write it; move it away, or "
                "choose another --output_dir"
            )
    adapted = [each.module for each in model.targets.adapters] if isinstance(model, AdaptedModel) else []
    if ties_embeddings(model.config) and HEAD in adapted:
        raise ValueError(f"--save_merged: {HEAD} has an adapter and is tied to the embedding: leave it out")


def merged_bytes(args: TrainingArguments, lora: LoraArguments, model: CausalLM) -> int:
    """Return the bytes that --save_merged will write; 0 without the flag."""
    if not lora.save_merged:
        return 0
    dtype = model.weights_dtype() if args.save_dtype == "auto" else args.save_dtype
    return _WIDTHS[dtype] * sum(math.prod(shape) for _, shape in model.parameter_shapes())


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


def save_merged(trainer: MergingTrainer) -> Path:
    """Merge the adapter that is saved in `output_dir` into its base model; collective. The merged model.

    The ranks that write do it. Weights have --save_dtype and are split at --max_shard_size. A merged model
    of --save_merged that is there is replaced in one step, another one is put aside. ValueError as
    `merge_adapter`.
    """
    folder = Path(trainer.args.output_dir or ".")
    with trainer.progress.phase("merging", f"the model to {folder / FOLDER}"):
        _merge(trainer.args, trainer.model, lambda: True)
    return folder / FOLDER


def merge_finished(args: TrainingArguments, lora: LoraArguments, model: CausalLM) -> None:
    """For a run that had ended before: the merged model that --save_merged asks for; collective.

    Nothing where it is there, and no older than the adapter. ValueError as `check_merged_place`.
    """
    if not lora.save_merged:
        return
    check_merged_place(args.output_dir, lora, model)
    folder = Path(args.output_dir or ".")
    _merge(args, model, lambda: not _is_current(folder))


def _merge(args: TrainingArguments, model: CausalLM, is_needed: Callable[[], bool]) -> None:
    """On the ranks that write, where `is_needed` there, with a line; collective."""
    from fastsft import _C

    folder = Path(args.output_dir or ".")
    dtype = None if args.save_dtype == "auto" else args.save_dtype

    def merge() -> None:
        if not is_needed():
            return
        if why := _C.protection_inside(str(folder / FOLDER)):
            tell(
                f"the merged model is not written: {why}; `fastsft merge {folder} OTHER` writes it elsewhere"
            )
            return
        _put_aside_others(folder)
        merge_adapter(
            folder,
            folder / FOLDER,
            model.source_directory,
            dtype=dtype,
            max_shard_size=parse_size(args.max_shard_size),
            replaces=lambda manifest: _note(folder, manifest),
        )
        tell(f"{folder / FOLDER}: the base model with the adapter merged into it")

    agreement = Agreement(f"merging into {folder / FOLDER}")
    agreement.attempt_if(writes_small_files(args), merge)
    agreement.settle(None)


def _is_current(folder: Path) -> bool:
    """True if the merged model in `folder` was written by a run there, and after the adapter."""
    place = folder / FOLDER
    if not is_converted(place) or not _is_own(folder):
        return False
    return (place / "manifest.json").stat().st_mtime_ns >= (folder / WEIGHTS_NAME).stat().st_mtime_ns


def _digest(folder: Path) -> Digest:
    return digest_of_file(folder / FOLDER / "manifest.json")


def _note(folder: Path, manifest: str) -> None:
    """Put the model of this manifest.json on record, before it is there: a run may end at any moment."""
    place = folder / FOLDER
    before = {_BEFORE: _digest(folder)} if os.path.lexists(place) else {}
    text = json.dumps({_KEY: digest_of(manifest.encode()), **before})
    replace_file(folder / _RECORD, text + "\n")


def _is_own(folder: Path) -> bool:
    """True if --save_merged wrote the model that fastsft wrote there: `fastsft convert` writes such, too."""
    try:
        record = read_json_object(folder / _RECORD)
        return list(_digest(folder)) in (record.get(_KEY), record.get(_BEFORE))
    except ValueError:  # also where there is no record, as of older versions
        return False


def _put_aside_others(folder: Path) -> None:
    from fastsft import _C

    place = folder / FOLDER
    if is_converted(place) and not _is_own(folder):
        aside = Path(_C.put_aside(str(place)))
        tell(f"{place}, which --save_merged is not on record to have written, is now called {aside.name}")
