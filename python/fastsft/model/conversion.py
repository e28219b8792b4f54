"""Converts a model directory or a checkpoint into a new directory with another dtype, file size or values."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.model.causal_lm import CausalLM
from fastsft.model.config import json_text
from fastsft.model.config_words import in_both_words
from fastsft.model.engine_choice import open_model
from fastsft.model.master_weights import MasterWeights, has_master_weights
from fastsft.model.model_save import write_durably
from fastsft.model.output_directory import check_free_space
from fastsft.model.stored_weights import DTYPES, StoredTensor, StoredWeights, bits_of
from fastsft.runtime.dtypes import BITS, STORED_NAMES
from fastsft.runtime.messages import tell
from fastsft.runtime.output_files import files_of
from fastsft.runtime.regular_files import file_inside, read_regular
from fastsft.tokenizer.files import KeptFiles, write_compatible_config

if TYPE_CHECKING:
    import torch

    from fastsft import _C

_COPIED = (
    "generation_config.json",
    "base_chat_template.jinja",
    "README.md",
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
    "NOTICE.txt",
    "USE_POLICY.md",
)
# Estimated sizes: a tensor's header entry, and configuration, licence and card together.
_HEADER_BYTES, _SMALL_FILE_BYTES = 256, 1 << 20
_STEP, _LAYOUT = 0, ""  # step and layout hash in the manifest; no checkpoint has these values

Change = Callable[[str, "torch.Tensor"], "torch.Tensor"]
Replaces = Callable[[str], None]


@dataclass(frozen=True)
class Converted:
    """A conversion's result.

    directory: the new directory. tensors: tensor count. bytes: the tensors' total size. files: weight file
    count. left_out: tensors in the source that the model does not read.
    """

    directory: Path
    tensors: int
    bytes: int
    files: int
    left_out: list[str]


def convert_model(
    source: Path,
    target: Path,
    dtype: str | None,
    max_shard_size: int,
    change: Change | None = None,
    tokenizer: Path | None = None,
    *,
    trust_remote_code: bool = False,
    replaces: Replaces | None = None,
) -> Converted:
    """Write the model in `source`, a model directory or checkpoint, into the new directory `target`.

    `target` appears complete or not at all. Only one tensor at a time is in memory.
    dtype: float32, bfloat16 or float16, rounded once to nearest even. If `source` is a checkpoint with
    optimizer files, the values come from the master weights, else from the stored weights. None keeps each
    tensor's dtype.
    max_shard_size: weight file size in bytes.
    change: called with a tensor's name and value; returns the value to round and store.
    tokenizer: tokenizer directory; None for `source`.
    trust_remote_code: True to run a model class in `source`.
    replaces: if given, `target` may be a directory that a conversion wrote (`is_converted`), and the caller
    must hold the lock of its parent directory. The old directory stays until the new directory is complete.
    Files in it that fastsft did not write are moved elsewhere, with a notice. Just before the exchange,
    `replaces` is called with the text of the new manifest.json.

    ValueError if `source` is not a complete, known model, if `target` exists, or if dtype cannot represent a
    value.
    """
    if os.path.lexists(target) and not (replaces and is_converted(target)):
        raise ValueError(f"{target}: is there already, and nothing is overwritten; choose another name")
    model = _model_of(source, trust_remote_code)
    values = _Values(_whole_weights(source, model), model, dtype, change)
    target.absolute().parent.mkdir(parents=True, exist_ok=True)
    small = _small_files_size(tokenizer or source, len(values.kept))
    check_free_space(target.absolute().parent, values.size + small)

    def write(folder: str) -> list[_C.FileDigest]:
        weights = _write_weights(folder, values, max_shard_size)
        return weights + _write_small_files(Path(folder), model, dtype, tokenizer or source)

    files = _write_directory(target, write, replaces)
    number = sum(file.name.endswith(".safetensors") for file in files)
    return Converted(target, len(values.kept), values.size, number, values.left_out)


def _write_directory(
    target: Path, write: Callable[[str], list[_C.FileDigest]], replaces: Replaces | None
) -> list[_C.FileDigest]:
    """Write the files and manifest.json under a temporary name, and rename the whole directory."""
    from fastsft import _C

    parent = target.absolute().parent
    # In its own folder, because a run that saves into `parent` would remove half-written files there.
    workshop = parent if replaces else Path(tempfile.mkdtemp(prefix=".fastsft-convert-", dir=parent))
    staging = _C.AtomicDirectory(str(workshop), target.name)
    try:
        files = write(staging.path)
        manifest = _C.Manifest(_STEP, 1, _LAYOUT, files)
        if replaces:
            replaces(manifest.json())
        staging.commit(target.name, manifest)
        if not replaces:
            _move_new(workshop / target.name, target)
        elif staging.kept:
            tell(f"what fastsft did not write in {target} is now in {staging.kept}")
    finally:
        staging.discard()
        if not replaces:
            shutil.rmtree(workshop, ignore_errors=True)
    return files


def _small_files_size(tokenizer: Path, tensors: int) -> int:
    """Estimate the total bytes in all files except the weights."""
    files = sum(map(len, KeptFiles.from_directory(tokenizer).contents.values()))
    return files + tensors * _HEADER_BYTES + _SMALL_FILE_BYTES


def is_converted(directory: str | Path) -> bool:
    """Return True if `convert_model` wrote `directory`.

    False for a link, for a checkpoint, and for another program's output.
    """
    from fastsft import _C

    if not _C.holds_manifest(str(directory)):
        return False
    manifest = _C.read_manifest(str(directory))
    return (manifest.step, manifest.layout_hash) == (_STEP, _LAYOUT)


def _move_new(made: Path, target: Path) -> None:
    from fastsft import _C

    if os.path.lexists(target):
        raise ValueError(f"{target}: was made meanwhile, and nothing is overwritten; choose another name")
    made.rename(target)
    _C.sync_directory(str(target.absolute().parent))


def _model_of(source: Path, trust_remote_code: bool) -> CausalLM:
    if not source.is_dir():
        raise ValueError(f"{source}: expected a model directory or a checkpoint, got no directory")
    return open_model(str(source), trust_remote_code=trust_remote_code)


def _whole_weights(source: Path, model: CausalLM) -> StoredWeights:
    """Open the weights in `source`. ValueError with the first problem if the model is not complete."""
    from fastsft import _C

    model.parameter_shapes()
    if (source / "manifest.json").exists() and (broken := _C.verify_directory(str(source), checksums=False)):
        raise ValueError(f"{source}: {broken[0]}; take another checkpoint, or copy this one again")
    weights = StoredWeights(source)
    problems = weights.problems or [f"{source}: {line}" for line in model.stored_form(weights).problems()]
    if problems:
        more = f" (and {len(problems) - 1} more faults)" if len(problems) > 1 else ""
        raise ValueError(f"{problems[0]}{more}; fastsft verify {source} says more")
    return weights


def _split(weights: StoredWeights, model: CausalLM) -> tuple[list[StoredTensor], list[str]]:
    """Return the tensors that the model reads, and the other tensors' names.

    The others are for example tied copies and rotary tables.
    """
    form = model.stored_form(weights)
    left_out = form.unneeded()
    for first, second in form.second_copies():
        if not weights.is_same(first, weights, second):
            raise ValueError(
                f"{weights.directory}: config.json ties {second} to {first}, and they differ; set "
                "tie_word_embeddings as the model was trained, or remove the one that is not of it"
            )
        left_out.append(second)
    return [entry for name, entry in weights.tensors.items() if name not in left_out], left_out


class _Values:
    """Computes the values of the tensors to write.

    kept: the tensors. stored: maps each tensor's name to its safetensors dtype. size: their bytes. left_out:
    tensors in the source that the model does not read.
    """

    def __init__(
        self, weights: StoredWeights, model: CausalLM, dtype: str | None, change: Change | None
    ) -> None:
        self._weights, self._change = weights, change
        self.kept, self.left_out = _split(weights, model)
        self.stored = {
            entry.name: STORED_NAMES[dtype] if dtype and entry.dtype in DTYPES else entry.dtype
            for entry in self.kept
        }
        self.size = sum(entry.count * BITS[self.stored[entry.name]] // 8 for entry in self.kept)
        self._masters: MasterWeights | None = None
        converted = any(self.stored[entry.name] != entry.dtype for entry in self.kept)
        if converted and has_master_weights(weights.directory):
            self._masters = MasterWeights(weights.directory, model.unit_layouts())

    def read(self, name: str) -> torch.Tensor:
        """Return the value to write for a tensor.

        ValueError if a checkpoint's weights do not equal its rounded master weights.
        """
        entry, dtype = self._weights.tensors[name], self.stored[name]
        if entry.dtype not in DTYPES:  # not float: copied unchanged
            return self._weights.read_any(name)
        value = self._weights.read(name)
        if self._change is not None:
            return _rounded(self._change(name, value), DTYPES[dtype], name)
        if entry.dtype == dtype or self._masters is None or name not in self._masters:
            return _rounded(value, DTYPES[dtype], name)
        master = self._masters.read(name)
        if bits_of(_rounded(master, DTYPES[entry.dtype], name)) != bits_of(value):
            raise ValueError(
                f"{entry.file}: {name} is not what the optimizer's files hold, rounded to {entry.dtype}; "
                "take another checkpoint, or leave out --dtype"
            )
        return _rounded(master, DTYPES[dtype], name)


def _write_weights(path: str, values: _Values, max_shard_size: int) -> list[_C.FileDigest]:
    """Write the weight files; return their digests."""
    from fastsft import _C

    kept, stored = values.kept, values.stored
    specs = [_C.TensorSpec(entry.name, stored[entry.name], list(entry.shape)) for entry in kept]
    # Larger elements come first, so that each tensor is aligned to its element size.
    order = sorted(range(len(kept)), key=lambda number: -BITS[stored[kept[number].name]])
    files = _C.WeightFiles(path, specs, order, max_shard_size)
    try:
        for number in order:
            files.write(bits_of(values.read(kept[number].name)))
        return list(files.commit(sum(entry.count for entry in kept)))
    except BaseException:
        files.discard()
        raise


def _rounded(tensor: torch.Tensor, dtype: str, name: str) -> torch.Tensor:
    """Round to nearest even. ValueError if a finite value would become infinite."""
    import torch

    rounded = tensor.to(getattr(torch, dtype))
    lost = int((rounded.isinf() & tensor.isfinite()).sum()) if rounded.dtype != tensor.dtype else 0
    if lost:
        other = "bfloat16" if dtype == "float16" else "float32"
        most = torch.finfo(rounded.dtype).max
        raise ValueError(
            f"{name}: {lost:,} values are beyond {most:g}, which {dtype} cannot hold; take --dtype {other}"
        )
    return rounded


def _write_small_files(
    folder: Path, model: CausalLM, dtype: str | None, tokenizer: Path
) -> list[_C.FileDigest]:
    """Write configuration, tokenizer and licence, and sync them to disk. Return the files' digests."""
    kept = KeptFiles.from_directory(tokenizer)

    def write(private: str) -> None:
        kept.write(Path(private))
        write_compatible_config(private)

    contents = [*_small_files(model, dtype), *files_of(write, folder).items()]
    return [write_durably(folder, name, content) for name, content in contents]


def _small_files(model: CausalLM, dtype: str | None) -> Iterator[tuple[str, str | bytes]]:
    config = model.config
    if dtype is not None:
        names = [name for name in ("torch_dtype", "dtype") if name in config] or ["torch_dtype"]
        config.update(dict.fromkeys(names, dtype))
    yield "config.json", json_text(in_both_words(config))
    yield from model.code_files().items()
    for name in _COPIED:
        path = file_inside(model.source_directory, name)
        if path is not None:
            yield name, read_regular(path)
