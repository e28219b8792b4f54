"""A model directory made from another one or from a checkpoint: other dtype, other files, the same values."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.model.causal_lm import CausalLM
from fastsft.model.choice import open_model
from fastsft.model.config import json_text
from fastsft.model.directory import check_free_space, write_durably
from fastsft.model.master_weights import MasterWeights, has_master_weights
from fastsft.model.stored_weights import (
    BITS,
    DTYPES,
    StoredTensor,
    StoredWeights,
    bits_of,
)
from fastsft.model.words.both import in_both_words
from fastsft.runtime.messages import tell
from fastsft.runtime.output_files import files_of
from fastsft.runtime.regular_files import file_inside, read_regular
from fastsft.tokenizer.files import KeptFiles, write_compatible_config

if TYPE_CHECKING:
    import torch

    from fastsft import _C

_STORED = {name: stored for stored, name in DTYPES.items()}
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
_ROOM_FOR_A_HEADER, _ROOM_FOR_CONFIGURATION = 256, 1 << 20  # of a tensor's name; and licence, model card
_STEP, _LAYOUT = 0, ""  # in the manifest: no checkpoint has these

Change = Callable[[str, "torch.Tensor"], "torch.Tensor"]
Replaces = Callable[[str], None]


@dataclass(frozen=True)
class Converted:
    """Result of a conversion. left_out: tensors of the source that the model does not need."""

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
    """Write the model of `source`, a directory or a checkpoint, into the new directory `target`.

    dtype: float32, bfloat16 or float16, rounded to nearest even once: from the float32 weights of a
    checkpoint with the state of its optimizer, else from what is stored; None keeps each tensor as it is.
    max_shard_size: bytes of a weight file. change: makes another value of a tensor, by its name, before it
    is rounded; with it what is stored counts. tokenizer: its directory; None: `source`. trust_remote_code:
    a model class of `source` is run. replaces: `target` may be there, if a conversion wrote it
    (`is_converted`); it is there until the new one is whole, and what others put into it is kept aside, with
    a line. It is called with the text of the new manifest.json just before. Only for who
    holds its parent. One unit is in memory at a time. `target` appears whole or not at
    all. ValueError for a source that is not a whole model of a known family, a target that is there, and a
    value that the dtype cannot hold.
    """
    from fastsft import _C

    if os.path.lexists(target) and not (replaces and is_converted(target)):
        raise ValueError(f"{target}: is there already, and nothing is overwritten; choose another name")
    model = _model_of(source, trust_remote_code)
    weights = _whole_weights(source, model)
    kept, left_out = _split(weights, model)
    stored = {each.name: _STORED[dtype] if dtype and each.dtype in DTYPES else each.dtype for each in kept}
    size = sum(each.count * BITS[stored[each.name]] // 8 for each in kept)
    parent = target.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    check_free_space(parent, size + _bytes_of_small_files(tokenizer or source, len(kept)))
    # In a folder of its own: a run that saves into `parent` removes what it finds half written there.
    workshop = parent if replaces else Path(tempfile.mkdtemp(prefix=".fastsft-convert-", dir=parent))
    staging = _C.AtomicDirectory(str(workshop), target.name)
    try:
        values = _Values(weights, stored, model, change)
        files = _write_weights(staging.path, values, kept, stored, max_shard_size)
        number = sum(each.name.endswith(".safetensors") for each in files)
        files += _write_small_files(Path(staging.path), model, dtype, tokenizer or source)
        manifest = _C.Manifest(_STEP, 1, _LAYOUT, files)
        if replaces:
            replaces(manifest.json())
        staging.commit(target.name, manifest)
        if not replaces:
            _take_place(workshop / target.name, target)
        elif staging.kept:
            tell(f"what fastsft did not write in {target} is now in {staging.kept}")
    finally:
        staging.discard()
        if not replaces:
            shutil.rmtree(workshop, ignore_errors=True)
    return Converted(target, len(kept), size, number, left_out)


def _bytes_of_small_files(tokenizer: Path, tensors: int) -> int:
    """Of what is written next to the numbers of the weights, about."""
    files = sum(map(len, KeptFiles.from_directory(tokenizer).contents.values()))
    return files + tensors * _ROOM_FOR_A_HEADER + _ROOM_FOR_CONFIGURATION


def is_converted(directory: str | Path) -> bool:
    """True if `directory` is what `convert_model` made: no link, no checkpoint, nothing of other programs."""
    from fastsft import _C

    if not _C.holds_manifest(str(directory)):
        return False
    manifest = _C.read_manifest(str(directory))
    return (manifest.step, manifest.layout_hash) == (_STEP, _LAYOUT)


def _take_place(made: Path, target: Path) -> None:
    from fastsft import _C

    if os.path.lexists(target):
        raise ValueError(f"{target}: was made meanwhile, and nothing is overwritten")
    made.rename(target)
    _C.sync_directory(str(target.absolute().parent))


def _model_of(source: Path, trust_remote_code: bool) -> CausalLM:
    if not source.is_dir():
        raise ValueError(f"{source}: expected a model directory or a checkpoint, got no directory")
    return open_model(str(source), trust_remote_code=trust_remote_code)


def _whole_weights(source: Path, model: CausalLM) -> StoredWeights:
    """ValueError with the first fault of a source that is no whole model."""
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
    """The tensors of the model, and the names of others: the second copy of tied weights, tables of rope."""
    form = model.stored_form(weights)
    left_out = form.unneeded()
    for first, second in form.second_copies():
        if not weights.is_same(first, weights, second):
            raise ValueError(
                f"{weights.directory}: config.json ties {second} to {first}, and they differ; set "
                "tie_word_embeddings as the model was trained, or remove the one that is not of it"
            )
        left_out.append(second)
    return [each for name, each in weights.tensors.items() if name not in left_out], left_out


class _Values:
    """Tensors as they are to be written. stored: dtypes by name."""

    def __init__(
        self,
        weights: StoredWeights,
        stored: dict[str, str],
        model: CausalLM,
        change: Change | None = None,
    ) -> None:
        self._weights, self._stored, self._change = weights, stored, change
        self._masters: MasterWeights | None = None
        others = [name for name, dtype in stored.items() if weights.tensors[name].dtype != dtype]
        if others and has_master_weights(weights.directory):
            self._masters = MasterWeights(weights.directory, model.unit_layouts())

    def read(self, name: str) -> torch.Tensor:
        """ValueError where a checkpoint's model is not its float32 weights, rounded."""
        entry, dtype = self._weights.tensors[name], self._stored[name]
        if entry.dtype not in DTYPES:  # carried, as it is
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


def _write_weights(
    path: str, values: _Values, kept: list[StoredTensor], stored: dict[str, str], max_shard_size: int
) -> list[_C.FileDigest]:
    """The digests of the files."""
    from fastsft import _C

    specs = [_C.TensorSpec(each.name, stored[each.name], list(each.shape)) for each in kept]
    # Larger elements first: each begins at a multiple of its size.
    order = sorted(range(len(kept)), key=lambda number: -BITS[stored[kept[number].name]])
    files = _C.WeightFiles(path, specs, order, max_shard_size)
    try:
        for number in order:
            files.write(bits_of(values.read(kept[number].name)))
        return list(files.commit(sum(each.count for each in kept)))
    except BaseException:
        files.discard()
        raise


def _rounded(tensor: torch.Tensor, dtype: str, name: str) -> torch.Tensor:
    """To nearest even. ValueError for a finite value that becomes infinite."""
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
    """config.json, generation_config.json, tokenizer and licence, durable on return. Their digests."""
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
