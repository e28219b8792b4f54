"""The files that rank 0 writes for a model that another trainer trained."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fastsft.arguments.sizes import parse_size
from fastsft.checkpoint.external.entries import Entry
from fastsft.model.directory import (
    check_free_space,
    recover_directory,
    write_durably,
)
from fastsft.model.file_sets import install_file_set, note_file_set
from fastsft.model.words.files import write_both_words
from fastsft.runtime.output_files import files_of, replace_file
from fastsft.tokenizer.files import write_compatible_config

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel
    from typing_extensions import TypeIs

    from fastsft import _C
    from fastsft.checkpoint.external.foreign_trainer import ForeignTrainer
    from fastsft.model.saved_parts import SavedTokenizer

_DTYPE_NAMES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.uint16: "U16",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32", torch.uint32: "U32",
    torch.float32: "F32", torch.complex64: "C64", torch.float64: "F64", torch.int64: "I64",
    torch.uint64: "U64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}  # fmt: skip
_SUBDIRECTORY = "fine-tuned"


class ModelFiles:
    """A model directory that takes shape tensor by tensor, and keeps its old files until `commit`.

    `order`: the indices of `entries` in the order in which they will be written.
    """

    def __init__(
        self, trainer: ForeignTrainer, model: nn.Module, folder: Path, entries: list[Entry], order: list[int]
    ) -> None:
        self._trainer, self._model, self._folder = trainer, model, folder
        self._entries, self._order = entries, order
        self._staging: _C.AtomicDirectory | None = None
        self._weights: _C.WeightFiles | None = None
        self._digests: list[_C.FileDigest] = []  # of all files but the weights

    def open(self) -> None:
        """Everything but the weights, and the weight files with their headers.

        RuntimeError when the disk is too small; ValueError for a type that safetensors has no name for.
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
        """The entries `indices`, which are next in the order; `tensors` are those of their unit."""
        assert self._weights is not None  # of `open`
        for index in indices:
            tensor = tensors[self._entries[index].position]
            self._weights.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def commit(self) -> None:
        """Verify, put the files in place together, remove weight files of an earlier save."""
        from fastsft import _C

        parameters = {
            (id(entry.unit), entry.position): entry.shape for entry in self._entries if entry.is_parameter
        }
        assert self._weights is not None and self._staging is not None  # of `open`
        digests = self._weights.commit(sum(torch.Size(shape).numel() for shape in parameters.values()))
        digests += self._digests
        name = _C.file_set_name()
        note_file_set(self._folder, digests)
        self._staging.commit(name, _C.Manifest(0, 1, "", digests))
        install_file_set(self._folder, name)

    def discard(self) -> None:
        """Remove what is not in place."""
        for part in (self._weights, self._staging):
            if part is not None:
                part.discard()


def _bytes(entry: Entry) -> int:
    return torch.Size(entry.shape).numel() * entry.dtype.itemsize


def _dtype_name(entry: Entry) -> str:
    name = _DTYPE_NAMES.get(entry.dtype)
    if name is None:
        raise ValueError(f"{entry.name}: safetensors has no element type {entry.dtype}")
    return name


def _max_shard_size(model: nn.Module) -> int:
    """The limit of the model's `save_pretrained`; none for other modules, which get one file."""
    parameters = inspect.signature(model.save_pretrained).parameters if is_pretrained(model) else {}
    limit = parameters["max_shard_size"].default if "max_shard_size" in parameters else 2**62
    return parse_size(limit)


def is_pretrained(model: object) -> TypeIs[PreTrainedModel]:
    """True if transformers defines how the model is saved."""
    kind = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    return kind is not None and isinstance(model, kind)


def _beside_source(folder: Path, model: nn.Module) -> Path:
    """`folder`, or a directory in it when it is the one that the model was loaded from."""
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
    """Durable on return. The digests."""

    def write(folder: str) -> None:
        if is_pretrained(model):
            _write_config(model, Path(folder))
        tokenizer = _tokenizer(trainer)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
            write_compatible_config(folder)

    contents = files_of(write, staging)
    if hasattr(trainer.args, "to_json_string"):  # the tokens of hubs left out, unlike in a pickle
        contents["training_args.json"] = (trainer.args.to_json_string().rstrip("\n") + "\n").encode()
    small = {name: content for name, content in contents.items() if not name.startswith(".")}
    return [write_durably(staging, name, content) for name, content in small.items()]


def _write_config(model: PreTrainedModel, folder: Path) -> None:
    """config.json, generation_config.json and the code of custom models, by transformers itself."""
    try:
        model.save_pretrained(str(folder), state_dict={})
    except ValueError as error:
        # transformers refuses some generation settings; a finished run is not lost over them.
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
        found = getattr(owner, name, None)
        if hasattr(found, "save_pretrained"):
            return found
    return None
