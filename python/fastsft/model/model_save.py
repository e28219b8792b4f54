"""Saves a model as a complete Hugging Face directory, from the engine or from a script's state_dict.

Rules: docs/spec/trainer_semantics.md, sections 19 to 24.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from fastsft.arguments.values import parse_size
from fastsft.model.config import config_to_save, generation_config_to_save, json_text
from fastsft.model.family import ties_embeddings
from fastsft.model.output_directory import (
    check_free_space,
    check_output_directory,
    install_file_set,
    note_file_set,
    recover_directory,
)
from fastsft.model.stored_weights import StoredWeights, bits_of
from fastsft.ranks.exchange import AllOrNone
from fastsft.ranks.output_directory import agreed_save_mode, check_still_held, writes_small_files
from fastsft.runtime.dtypes import BITS, STORED_NAMES
from fastsft.runtime.output_files import digest_of, files_of, write_below
from fastsft.tokenizer.files import write_compatible_config

if TYPE_CHECKING:
    import torch

    from fastsft import _C
    from fastsft.arguments import TrainingArguments
    from fastsft.callbacks.state import TrainerState
    from fastsft.model.causal_lm import CausalLM

FileReport = tuple[str, int, int]  # name, size in bytes, CRC-32C
RangeReport = tuple[str, int, int, int]  # name, first byte, size in bytes, CRC-32C

Report = tuple[list[FileReport], list[RangeReport]]  # files and file ranges that a rank has written


class TrainedRun(Protocol):
    """The Trainer attributes that a save reads.

    A protocol, because the trainer package imports this module. The object may also have a `tokenizer` or a
    `data_collator` with a tokenizer and, while it trains, a `saver`.
    """

    @property
    def args(self) -> TrainingArguments: ...

    @property
    def model(self) -> CausalLM: ...

    @property
    def engine(self) -> _C.Engine: ...

    @property
    def state(self) -> TrainerState: ...


@dataclass(frozen=True)
class ModelForm:
    """Dtype and largest file size, in bytes, of the weight files that a save writes."""

    dtype: str
    max_shard_size: int

    @classmethod
    def of(cls, trainer: TrainedRun) -> ModelForm:
        """Read `--save_dtype` and `--max_shard_size`."""
        return cls(_save_dtype(trainer), parse_size(trainer.args.max_shard_size))

    def bytes(self, trainer: TrainedRun) -> int:
        """Return the total weight file size that a save writes, in bytes."""
        from fastsft import _C

        if (adapter := trainer.model.adapter_bytes()) is not None:
            return int(adapter)
        return int(_C.model_bytes(trainer.engine, self.dtype, self.max_shard_size))


def _save_dtype(trainer: TrainedRun) -> str:
    """Return `--save_dtype`, or the source weights' dtype if it is "auto"."""
    chosen = trainer.args.save_dtype
    return trainer.model.weights_dtype() if chosen == "auto" else chosen


def save_model_directory(
    trainer: TrainedRun, directory: str | Path, caller: str = "save_model_directory"
) -> None:
    """Write weights, config, generation config, tokenizer and training_args.json. Collective.

    If the model has adapters, only these are written, instead of all weights. Weights are written in
    `--save_dtype` and split into files of `--max_shard_size`, by all ranks or streamed to one rank
    (`--save_mode`). They are read back as a check. When all files are complete and synced to disk, they get
    their names together, and an earlier save's weight files are removed. Values that a script wrote into
    a given model are saved, too.
    caller: message prefix. ValueError if `directory` is the model's source, or if the model has
    parameters that the engine does not have.
    """
    trainer.model.load_weights_before_save(caller)
    folder, args = Path(directory), trainer.args
    finish_save_in_flight(trainer)
    form, adapter = ModelForm.of(trainer), trainer.model.adapter_to_save()
    agreement = AllOrNone(f"saving the model to {folder}")
    writes = writes_small_files(args)
    staging = agreement.attempt_if(writes, lambda: open_file_set(trainer, folder, form))
    try:
        path = agreement.settle_on_rank0(staging.path if staging is not None else None)
        path = staging.path if staging is not None else path
        files: list[_C.FileDigest] = []
        ranges: list[RangeReport] = []
        if adapter is not None:
            agreement.attempt_if(writes, lambda: files.extend(adapter.write(path)))
        else:
            mode, _ = agreed_save_mode(args, path, agreement)
            files, ranges = write_weights(trainer.engine, path, form, mode, args, agreement)
        agreement.attempt_if(writes, lambda: files.extend(write_small_files(trainer, path, form)))
        reports = agreement.settle(([digest_tuple(item) for item in files], ranges))
        agreement.attempt_if(writes, lambda: _install(trainer, staging, folder, reports, files))
        agreement.settle(None)
    finally:
        if staging is not None:
            staging.discard()


def write_weights(
    engine: _C.Engine, path: str, form: ModelForm, mode: str, args: TrainingArguments, agreement: AllOrNone
) -> tuple[list[_C.FileDigest], list[RangeReport]]:
    """Write the weight files into the new directory `path`, and read them back. Collective.

    mode: parallel or streamed. Return digests for the whole files and the file ranges that this rank
    wrote.
    """
    from fastsft import _C

    options: dict[str, Any] = {"dtype": form.dtype, "max_shard_size": form.max_shard_size}
    if mode != "parallel":
        writes = writes_small_files(args) if args.save_on_each_node else None
        return list(_C.save_model(engine, path, **options, writes=writes)), []
    written = agreement.attempt(
        lambda: _C.write_part(engine, path, **options, with_model=True, with_state=False)
    )
    agreement.settle(None)
    agreement.attempt(lambda: _C.check_model_part(engine, path, **options))
    return [], [range_tuple(item) for item in written[1]] if written else []


def digest_tuple(digest: _C.FileDigest) -> FileReport:
    """Return a FileDigest as a tuple, which can be sent to other ranks."""
    return digest.name, digest.size, digest.crc32c


def range_tuple(digest: _C.RangeDigest) -> RangeReport:
    """Return a RangeDigest as a tuple, which can be sent to other ranks."""
    return digest.name, digest.offset, digest.size, digest.crc32c


def joined_digests(reports: Iterable[Report]) -> list[_C.FileDigest]:
    """Join all ranks' reports into FileDigests. RuntimeError if bytes are missing."""
    from fastsft import _C

    files: list[_C.FileDigest] = []
    ranges: list[_C.RangeDigest] = []
    for whole_files, parts in reports:
        files += [_C.FileDigest(*item) for item in whole_files]
        ranges += [_C.RangeDigest(*item) for item in parts]
    return [*_C.join_ranges(ranges), *files]


def finish_save_in_flight(trainer: TrainedRun) -> None:
    """Wait until the checkpoint that `trainer` is writing is complete, and raise its error. Collective.

    Without the wait, `recover_directory` would take the unfinished files for a crash's, and remove
    them.
    """
    saver = getattr(trainer, "saver", None)
    if saver is not None:
        saver.wait()


def small_texts(trainer: TrainedRun, save_dtype: str) -> dict[str, str]:
    """Return a model directory's texts: JSON files and code, by name.

    If the model has adapters, return only training_args.json.
    """
    arguments = {"training_args.json": trainer.args.to_json_string().rstrip("\n") + "\n"}
    if trainer.model.adapter_bytes() is not None:
        return arguments
    return {**model_texts(trainer.model, getattr(trainer, "tokenizer", None), save_dtype), **arguments}


def model_texts(model: CausalLM, tokenizer: object, save_dtype: str) -> dict[str, str]:
    """Return a model's texts by name: configuration, generation configuration and code.

    save_dtype: the saved weights' dtype.
    """
    config, generation = model.config, model.generation_settings()
    return {
        "config.json": json_text(config_to_save(config, tokenizer, save_dtype, model.class_name())),
        "generation_config.json": json_text(generation_config_to_save(generation, config, tokenizer)),
        **model.code_files(),
    }


def write_texts(texts: Mapping[str, str], directory: str | Path) -> list[_C.FileDigest]:
    """Write small files into a new directory and sync them to disk. Return their digests."""
    from fastsft import _C

    return [_C.write_file(str(Path(directory) / name), content) for name, content in texts.items()]


def write_tokenizer(tokenizer: SavedTokenizer | None, directory: str | Path) -> list[_C.FileDigest]:
    """Write the tokenizer's files into a new directory with its save_pretrained. Return their digests.

    All files are synced to disk on return. Folders are synced when the directory is committed.
    """
    if tokenizer is None:
        return []
    folder = Path(directory)

    def write(private: str) -> None:
        tokenizer.save_pretrained(private)
        write_compatible_config(private)

    return [write_durably(folder, name, content) for name, content in files_of(write, folder).items()]


def write_durably(directory: Path, name: str, content: str | bytes) -> _C.FileDigest:
    """Write the file `name` into `directory` and sync it to disk. Return its digest.

    name: may contain folders.
    """
    from fastsft import _C

    data = content.encode() if isinstance(content, str) else content
    write_below(directory, name, data, durable=True)
    return _C.FileDigest(name, *digest_of(data))


def open_file_set(trainer: TrainedRun, folder: Path, form: ModelForm) -> _C.AtomicDirectory:
    """Make a staging directory in `folder`, on the rank that writes. RuntimeError if the disk is too full."""
    from fastsft import _C

    check_output_directory(trainer.model.source_directory, folder)
    check_still_held(folder)
    folder.mkdir(parents=True, exist_ok=True)
    recover_directory(folder)
    check_free_space(folder, form.bytes(trainer))
    return _C.AtomicDirectory(str(folder), "model")


def write_small_files(trainer: TrainedRun, path: str, form: ModelForm) -> list[_C.FileDigest]:
    """Write configuration, tokenizer and arguments, and sync them to disk. Return their digests."""
    digests = write_texts(small_texts(trainer, form.dtype), path)
    return digests + write_tokenizer(tokenizer_to_save(trainer), path)


def _install(
    trainer: TrainedRun,
    staging: _C.AtomicDirectory | None,
    folder: Path,
    reports: list[Report],
    local_files: list[_C.FileDigest],
) -> None:
    """Commit the file set and install its files, on the rank that writes.

    With --save_on_each_node, one rank on each node writes.
    """
    from fastsft import _C

    assert staging is not None

    files = local_files if trainer.args.save_on_each_node else joined_digests(reports)
    name = _C.file_set_name()
    manifest = _C.Manifest(getattr(trainer.state, "global_step", 0), trainer.engine.world_size, "", files)
    note_file_set(folder, files)
    staging.commit(name, manifest)
    check_still_held(folder)
    install_file_set(folder, name)


class SavedTokenizer(Protocol):
    """A tokenizer from fastsft or from another library."""

    def save_pretrained(self, directory: str, /) -> object:
        """Write all tokenizer files into an existing directory."""


def tokenizer_to_save(trainer: object) -> SavedTokenizer | None:
    """Return the Trainer's tokenizer, else its data collator's, as transformers' Trainer does."""
    tokenizer = getattr(trainer, "tokenizer", None)
    if tokenizer is not None:
        return cast(SavedTokenizer, tokenizer)
    tokenizer = getattr(getattr(trainer, "data_collator", None), "tokenizer", None)
    return cast(SavedTokenizer, tokenizer) if hasattr(tokenizer, "save_pretrained") else None


def save_given_weights(
    trainer: TrainedRun, directory: str | Path, state_dict: Mapping[str, torch.Tensor]
) -> None:
    """Write a complete model directory with the tensors in `state_dict`, on this rank alone.

    FastChat's older scripts need this, because they gather a state_dict themselves. Format and installation
    are those of `save_model_directory`. ValueError if `directory` is the model's source.
    """
    from fastsft import _C

    folder, form = Path(directory), ModelForm.of(trainer)
    adapter = trainer.model.adapter_from_state_dict(state_dict)
    tensors = _file_tensors(trainer, _without_tied(state_dict, trainer.model.config))
    staging = open_file_set(trainer, folder, form)
    try:
        path = staging.path
        files = _write_weights(path, tensors, form, trainer.model) if adapter is None else adapter.write(path)
        files += write_small_files(trainer, staging.path, form)
        name = _C.file_set_name()
        note_file_set(folder, files)
        staging.commit(name, _C.Manifest(trainer.state.global_step, 1, "", files))
        install_file_set(folder, name)
    finally:
        staging.discard()


def _file_tensors(trainer: TrainedRun, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors by their names in files, which differ from the names in memory in transformers 5."""
    return {
        stored: part
        for name, tensor in tensors.items()
        for stored, part in trainer.model.stored_parts(name, tensor.contiguous())
    }


def _without_tied(
    state_dict: Mapping[str, torch.Tensor], config: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Leave out a tied head, because weight files contain only the embedding."""
    tied = ties_embeddings(config) and "model.embed_tokens.weight" in state_dict
    return {name: value for name, value in state_dict.items() if not (tied and name == "lm_head.weight")}


def _write_weights(
    path: str, tensors: Mapping[str, torch.Tensor], form: ModelForm, model: CausalLM
) -> list[_C.FileDigest]:
    """Write `tensors`, and the source's tensors that the engine does not have.

    Return the files' digests.
    """
    import torch

    from fastsft import _C

    carried = {entry.name: entry for entry in model.carried() if entry.name not in tensors}
    specs = [(name, STORED_NAMES[form.dtype], list(tensor.shape)) for name, tensor in tensors.items()]
    specs += [(entry.name, entry.dtype, list(entry.shape)) for entry in carried.values()]
    order = sorted(range(len(specs)), key=lambda number: -BITS[specs[number][1]])
    stored = StoredWeights(model.source_directory) if carried else None
    files = _C.WeightFiles(path, [_C.TensorSpec(*spec) for spec in specs], order, form.max_shard_size)
    try:
        for name in (specs[number][0] for number in order):
            if stored is not None and name in carried:
                whole = stored.read_any(name)
            else:
                whole = tensors[name].detach().to("cpu", getattr(torch, form.dtype)).contiguous()
            files.write(bits_of(whole))
        count = sum(tensor.numel() for tensor in tensors.values())
        return list(files.commit(count + sum(entry.count for entry in carried.values())))
    except BaseException:
        files.discard()
        raise
