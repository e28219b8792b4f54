"""Writes the merged model next to the adapter at the end of a run (`--save_merged`)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fastsft.arguments.lora import LoraArguments
from fastsft.arguments.values import parse_size
from fastsft.lora.adapted_model import AdaptedModel
from fastsft.lora.adapter_files import WEIGHTS_NAME
from fastsft.lora.merge import merge_adapter
from fastsft.lora.modules import HEAD
from fastsft.model.conversion import is_converted
from fastsft.model.family import ties_embeddings
from fastsft.model.model_save import TrainedRun
from fastsft.model.output_directory import check_output_directory
from fastsft.ranks.exchange import AllOrNone
from fastsft.ranks.output_directory import writes_small_files
from fastsft.runtime.dtypes import BITS, STORED_NAMES
from fastsft.runtime.messages import tell
from fastsft.runtime.output_files import Digest, digest_of, digest_of_file, replace_file
from fastsft.runtime.regular_files import read_json_object

if TYPE_CHECKING:
    from fastsft.arguments.training import TrainingArguments
    from fastsft.model.causal_lm import CausalLM

FOLDER = "merged"
# The record file next to the folder holds the digest of the manifest that --save_merged wrote. While the new
# model replaces an earlier one, the record holds the earlier manifest's digest, too.
_RECORD, _KEY, _BEFORE = ".fastsft-merged.json", "manifest", "before"


def check_merged_path(output_dir: str | Path | None, lora: LoraArguments, model: CausalLM) -> None:
    """Raise ValueError, before training, if --save_merged cannot write its folder or cannot merge.

    At the run's end, --save_merged replaces the model that it wrote earlier, and archives another model
    that fastsft wrote. ValueError if the folder is the model from which the run starts.
    """
    merged = Path(output_dir or ".") / FOLDER
    if not lora.save_merged:
        return
    if os.path.lexists(merged):
        check_output_directory(model.source_directory, merged)
        if not is_converted(merged):
            raise ValueError(
                f"--save_merged: {merged} is there already, and fastsft did not write it; move it away, or "
                "choose another --output_dir"
            )
    adapted = (
        [adapter.module for adapter in model.targets.adapters] if isinstance(model, AdaptedModel) else []
    )
    if ties_embeddings(model.config) and HEAD in adapted:
        raise ValueError(f"--save_merged: {HEAD} has an adapter and is tied to the embedding: leave it out")


def merged_bytes(args: TrainingArguments, lora: LoraArguments, model: CausalLM) -> int:
    """Return the bytes that --save_merged will write; 0 if the flag is off."""
    if not lora.save_merged:
        return 0
    dtype = model.weights_dtype() if args.save_dtype == "auto" else args.save_dtype
    return BITS[STORED_NAMES[dtype]] // 8 * sum(math.prod(shape) for _, shape in model.parameter_shapes())


class MergingTrainer(TrainedRun, Protocol):
    """The Trainer attributes that `save_merged` reads."""

    @property
    def progress(self) -> Phases: ...


class Phases(Protocol):
    """A display that shows which phase a run is in."""

    def phase(self, name: str, detail: str, /) -> AbstractContextManager[object]: ...


def save_merged(trainer: MergingTrainer) -> Path:
    """Merge the adapter in `output_dir` into its base model, on the ranks that write files. Collective.

    Return the merged model's directory. ValueError as in `merge_adapter`.
    """
    folder = Path(trainer.args.output_dir or ".")
    with trainer.progress.phase("merging", f"the model to {folder / FOLDER}"):
        _merge(trainer.args, trainer.model, lambda: True)
    return folder / FOLDER


def merge_finished(args: TrainingArguments, lora: LoraArguments, model: CausalLM) -> None:
    """Write the merged model for a run that has already finished, unless it is up to date. Collective.

    ValueError as in `check_merged_path`.
    """
    if not lora.save_merged:
        return
    check_merged_path(args.output_dir, lora, model)
    folder = Path(args.output_dir or ".")
    _merge(args, model, lambda: not _is_current(folder))


def _merge(args: TrainingArguments, model: CausalLM, is_needed: Callable[[], bool]) -> None:
    """Merge if `is_needed()`, on the ranks that write files, and print a notice. Collective."""
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
        _archive_other(folder)
        merge_adapter(
            folder,
            folder / FOLDER,
            model.source_directory,
            dtype=dtype,
            max_shard_size=parse_size(args.max_shard_size),
            replaces=lambda manifest: _note(folder, manifest),
        )
        tell(f"{folder / FOLDER}: the base model with the adapter merged into it")

    agreement = AllOrNone(f"merging into {folder / FOLDER}")
    agreement.attempt_if(writes_small_files(args), merge)
    agreement.settle(None)


def _is_current(folder: Path) -> bool:
    """Return True if --save_merged wrote the merged model in `folder`, and the adapter is not newer."""
    merged = folder / FOLDER
    if not is_converted(merged) or not _is_own(folder):
        return False
    return (merged / "manifest.json").stat().st_mtime_ns >= (folder / WEIGHTS_NAME).stat().st_mtime_ns


def _digest(folder: Path) -> Digest:
    return digest_of_file(folder / FOLDER / "manifest.json")


def _note(folder: Path, manifest: str) -> None:
    """Record the digest of the new model's manifest.json before the new model replaces the earlier one.

    The run may be killed at any moment, and the record must fit whichever model is in the folder.
    """
    before = {_BEFORE: _digest(folder)} if os.path.lexists(folder / FOLDER) else {}
    text = json.dumps({_KEY: digest_of(manifest.encode()), **before})
    replace_file(folder / _RECORD, text + "\n")


def _is_own(folder: Path) -> bool:
    """Return True if --save_merged wrote the merged model, rather than for example `fastsft convert`."""
    try:
        record = read_json_object(folder / _RECORD)
        return list(_digest(folder)) in (record.get(_KEY), record.get(_BEFORE))
    except ValueError:  # also if there is no record, which older versions did not write
        return False


def _archive_other(folder: Path) -> None:
    from fastsft import _C

    merged = folder / FOLDER
    if is_converted(merged) and not _is_own(folder):
        archived = Path(_C.put_aside(str(merged)))
        tell(f"{merged}, which --save_merged is not on record to have written, is now called {archived.name}")
