"""Saving of another trainer's model, unit by unit. At the end either all new files are in place or none.

Collective. Rank 0 needs memory for one unit in addition to its shard. Other ranks need no further memory.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from fastsft.arguments.values import parse_size
from fastsft.checkpoint.external.state import saved_entries, state_entries
from fastsft.checkpoint.external.units import Entry, NotStreamable, Unit
from fastsft.checkpoint.external.wrapped import unwrapped
from fastsft.model.model_config import write_both_words
from fastsft.model.model_save import write_durably
from fastsft.model.output_directory import (
    check_free_space,
    install_file_set,
    note_file_set,
    recover_directory,
)
from fastsft.ranks.exchange import AllOrNone
from fastsft.runtime.dtypes import STORED_NAMES
from fastsft.runtime.launch import Launch
from fastsft.runtime.output_files import files_of, replace_file
from fastsft.tokenizer.files import write_compatible_config

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel
    from typing_extensions import TypeIs

    from fastsft import _C
    from fastsft.model.model_save import SavedTokenizer


class ForeignArguments(Protocol):
    """Arguments of another trainer. If they have a method `to_json_string`, the arguments are saved."""

    @property
    def output_dir(self) -> str:
        """Directory to which the model is saved."""


class ForeignTrainer(Protocol):
    """transformers' Trainer, or another object with these attributes. It may also have a tokenizer."""

    @property
    def model(self) -> nn.Module:
        """The model, perhaps wrapped in FSDP or DDP."""

    @property
    def args(self) -> ForeignArguments: ...
    def save_model(self) -> None: ...


def save_foreign_model(trainer: ForeignTrainer) -> None:
    """Save `trainer.model`, with config and tokenizer, to `trainer.args.output_dir` unit by unit. Collective.

    Tensor names, dtypes and the division into files are as in the model's `save_pretrained`. The files are
    renamed into place after all of them are durable and verified. If a rank fails, all ranks raise, and the
    directory keeps its old files. NotStreamable on all ranks if the model cannot be saved this way.
    """
    model, place = unwrapped(trainer.model), current_place()
    agreement = AllOrNone(f"saving the model to {trainer.args.output_dir}", place)
    entries = _agreed_entries(trainer.model, model, agreement, place)
    steps = list(_schedule(entries))
    order = [index for _, indices in steps for index in indices]
    files = ModelFiles(trainer, model, Path(trainer.args.output_dir), entries, order)
    try:
        agreement.attempt_on_rank0(files.open)
        for unit, indices in steps:
            _save_unit(files, unit, indices, agreement)
        agreement.settle(None)
        agreement.attempt_on_rank0(files.commit)
        agreement.settle(None)
    finally:
        files.discard()


def current_place() -> Launch:
    """Return rank and world size from torch.distributed; 0 and 1 if it is not initialised."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return Launch()
    return Launch(rank=dist.get_rank(), world_size=dist.get_world_size())


def _save_unit(files: ModelFiles, unit: Unit, indices: list[int], agreement: AllOrNone) -> None:
    agreement.attempt(unit.prepare)
    if unit.is_sharded:
        agreement.settle(None)  # otherwise ranks would wait in `gather` for a rank that has failed
    tensors = unit.gather() if unit.is_sharded else agreement.attempt(unit.gather)
    agreement.attempt_on_rank0(lambda: files.write(indices, tensors or []))


def _agreed_entries(wrapped: nn.Module, model: nn.Module, agreement: AllOrNone, place: Launch) -> list[Entry]:
    """Return the state dict entries. If they differ between ranks, raise on all ranks: gathers would hang."""

    def find() -> tuple[list[Entry], str]:
        try:
            return saved_entries(model, state_entries(wrapped, place)), ""
        except NotStreamable as error:
            return [], str(error)

    entries, reason = agreement.attempt(find) or ([], "")
    listed = [(entry.name, entry.shape, str(entry.dtype), entry.unit.is_sharded) for entry in entries]
    digest = hashlib.sha256(repr(listed).encode()).hexdigest()
    for rank, (other, theirs) in enumerate(reports := agreement.settle((reason, digest))):
        if other:
            raise NotStreamable(other)
        if theirs != reports[0][1]:
            raise RuntimeError(f"{agreement.what}: rank {rank} has other weights than rank 0")
    return entries


def _schedule(entries: list[Entry]) -> Iterator[tuple[Unit, list[int]]]:
    """Yield each unit with its entries' indices.

    Units with wider dtypes come first, so that every tensor is aligned in the file. All tensors in a unit
    have dtypes of the same width.
    """
    steps: dict[tuple[int, int], list[int]] = {}
    numbers: dict[int, int] = {}
    for index, entry in enumerate(entries):
        number = numbers.setdefault(id(entry.unit), len(numbers))
        steps.setdefault((-entry.dtype.itemsize, number), []).append(index)
    for _, indices in sorted(steps.items()):
        yield entries[indices[0]].unit, indices


_SUBDIRECTORY = "fine-tuned"


class ModelFiles:
    """The files of a model directory, written tensor by tensor. Old files stay until `commit`.

    folder: the directory. entries: the tensors to save. order: indices of `entries` in writing order.
    """

    def __init__(
        self, trainer: ForeignTrainer, model: nn.Module, folder: Path, entries: list[Entry], order: list[int]
    ) -> None:
        self._trainer, self._model, self._folder = trainer, model, folder
        self._entries, self._order = entries, order
        self._staging: _C.AtomicDirectory | None = None
        self._weights: _C.WeightFiles | None = None
        self._digests: list[_C.FileDigest] = []  # digests of all files except the weight files

    def open(self) -> None:
        """Write all files except the weights, and create the weight files with their headers.

        RuntimeError if the disk has too little room; ValueError for a dtype that safetensors does not
        support.
        """
        from fastsft import _C

        folder = self._folder = _beside_source(self._folder, self._model)
        folder.mkdir(parents=True, exist_ok=True)
        recover_directory(folder)
        check_free_space(folder, sum(_bytes(entry) for entry in self._entries))
        self._staging = _C.AtomicDirectory(str(folder), "files")
        self._digests = _stage_small_files(self._trainer, self._model, Path(self._staging.path))
        specs = [_C.TensorSpec(e.name, _dtype_name(e), list(e.shape)) for e in self._entries]
        limit = _max_shard_size(self._model)
        self._weights = _C.WeightFiles(self._staging.path, specs, self._order, limit)

    def write(self, indices: list[int], tensors: list[torch.Tensor]) -> None:
        """Write the entries `indices`, the next in writing order. tensors: all tensors of their unit."""
        assert self._weights is not None  # `open` sets it
        for index in indices:
            tensor = tensors[self._entries[index].position]
            self._weights.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def commit(self) -> None:
        """Verify the files, rename them into place together, and remove weight files of an earlier save."""
        from fastsft import _C

        parameters = {
            (id(entry.unit), entry.position): entry.shape for entry in self._entries if entry.is_parameter
        }
        assert self._weights is not None and self._staging is not None  # `open` sets both
        digests = self._weights.commit(sum(torch.Size(shape).numel() for shape in parameters.values()))
        digests += self._digests
        name = _C.file_set_name()
        note_file_set(self._folder, digests)
        self._staging.commit(name, _C.Manifest(0, 1, "", digests))
        install_file_set(self._folder, name)

    def discard(self) -> None:
        """Remove the files that `commit` has not renamed into place."""
        for part in (self._weights, self._staging):
            if part is not None:
                part.discard()


def _bytes(entry: Entry) -> int:
    return torch.Size(entry.shape).numel() * entry.dtype.itemsize


def _dtype_name(entry: Entry) -> str:
    if entry.dtype == torch.complex64:
        return "C64"
    name = STORED_NAMES.get(str(entry.dtype).removeprefix("torch."))
    if name is None:
        raise ValueError(f"{entry.name}: safetensors has no element type {entry.dtype}")
    return name


def _max_shard_size(model: nn.Module) -> int:
    """Return the default max_shard_size of the model's `save_pretrained`; without the method, no limit."""
    parameters = inspect.signature(model.save_pretrained).parameters if is_pretrained(model) else {}
    limit = parameters["max_shard_size"].default if "max_shard_size" in parameters else 2**62
    return parse_size(limit)


def is_pretrained(model: object) -> TypeIs[PreTrainedModel]:
    """True if `model` is a PreTrainedModel, for which transformers defines the saved files."""
    kind = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    return kind is not None and isinstance(model, kind)


def _beside_source(folder: Path, model: nn.Module) -> Path:
    """Return `folder`, or a subdirectory of `folder` if the model was loaded from it."""
    source = getattr(getattr(model, "config", None), "_name_or_path", None)
    if not source or not Path(source).is_dir() or not folder.is_dir() or not os.path.samefile(source, folder):
        return folder
    target = folder / _SUBDIRECTORY
    warnings.warn(
        f"{folder}: the output directory is that of the model that was fine-tuned, whose files are never "
        f"overwritten; saving to {target}",
        stacklevel=2,
    )
    return target


def _stage_small_files(trainer: ForeignTrainer, model: nn.Module, staging: Path) -> list[_C.FileDigest]:
    """Write configuration, tokenizer and arguments durably. Return their digests."""

    def write(folder: str) -> None:
        if is_pretrained(model):
            _write_config(model, Path(folder))
        tokenizer = _tokenizer(trainer)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
            write_compatible_config(folder)

    contents = files_of(write, staging)
    if hasattr(trainer.args, "to_json_string"):  # unlike a pickle, this text has no hub tokens
        contents["training_args.json"] = (trainer.args.to_json_string().rstrip("\n") + "\n").encode()
    small = {name: content for name, content in contents.items() if not name.startswith(".")}
    return [write_durably(staging, name, content) for name, content in small.items()]


def _write_config(model: PreTrainedModel, folder: Path) -> None:
    """Let transformers write config.json, generation_config.json and the code files of custom models."""
    try:
        model.save_pretrained(str(folder), state_dict={})
    except ValueError as error:
        # transformers rejects some generation settings. A finished run must not be lost because of them.
        generation = getattr(model, "generation_config", None)
        if not (folder / "config.json").exists() or generation is None:
            raise
        replace_file(folder / "generation_config.json", generation.to_json_string())
        warnings.warn(f"generation_config.json: saved, but transformers objects: {error}", stacklevel=2)
    for empty in folder.glob("*.safetensors"):
        empty.unlink()
    write_both_words(folder)


def _tokenizer(trainer: ForeignTrainer) -> SavedTokenizer | None:
    for owner, name in (
        (trainer, "processing_class"),
        (trainer, "tokenizer"),
        (getattr(trainer, "data_collator", None), "tokenizer"),
    ):
        tokenizer = getattr(owner, name, None)
        if hasattr(tokenizer, "save_pretrained"):
            return tokenizer
    return None
