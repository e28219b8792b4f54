"""Writes a complete Hugging Face model directory (docs/spec/trainer_semantics.md, sections 19 to 24)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.arguments.sizes import parse_size
from fastsft.model.config import config_to_save, generation_config_to_save, json_text
from fastsft.model.file_sets import install_file_set, note_file_set
from fastsft.model.saved_parts import tokenizer_to_save
from fastsft.planning.device_memory import size_text
from fastsft.ranks.agreement import Agreement
from fastsft.ranks.run_lock import check_still_held, holds_lock
from fastsft.ranks.save_place import agreed_way, writes_small_files
from fastsft.runtime.file_calls import warn_unremoved
from fastsft.runtime.messages import tell_once
from fastsft.runtime.output_files import digest_of, files_of, write_below
from fastsft.tokenizer.files import write_compatible_config

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.arguments import TrainingArguments
    from fastsft.model.causal_lm import CausalLM
    from fastsft.model.saved_parts import SavedTokenizer
    from fastsft.model.trained import TrainedRun

FileReport = tuple[str, int, int]  # name, bytes, CRC-32C
RangeReport = tuple[str, int, int, int]  # name, first byte, bytes, CRC-32C
_BYTES_BELOW = 600  # of the longest path below --output_dir: three names, two of them of others

Report = tuple[list[FileReport], list[RangeReport]]  # what a rank has written


@dataclass(frozen=True)
class ModelForm:
    """Format of the written weights."""

    dtype: str
    max_shard_size: int

    @classmethod
    def of(cls, trainer: TrainedRun) -> ModelForm:
        """By `--save_dtype` and `--max_shard_size`."""
        return cls(_save_dtype(trainer), parse_size(trainer.args.max_shard_size))

    def bytes(self, trainer: TrainedRun) -> int:
        """Of all weight files that a save of `trainer` writes."""
        from fastsft import _C

        if (adapter := trainer.model.adapter_bytes()) is not None:
            return int(adapter)
        return int(_C.model_bytes(trainer.engine, self.dtype, self.max_shard_size))


def _save_dtype(trainer: TrainedRun) -> str:
    """`--save_dtype`, where auto is the type of the source weights."""
    chosen = trainer.args.save_dtype
    return trainer.model.weights_dtype() if chosen == "auto" else chosen


def save_model_directory(
    trainer: TrainedRun, directory: str | Path, caller: str = "save_model_directory"
) -> None:
    """Write weights, config, generation config, tokenizer and training_args.json; collective.

    Weights are written in `--save_dtype`, split at `--max_shard_size`, by all ranks or streamed to one
    (`--save_mode`), and read back. Of a model with adapters these are written in their place, whole. All
    files take their names together, when they are complete and durable; weight files of an earlier save are
    removed. What a script wrote into a given model is saved. caller: what messages begin with. ValueError
    when `directory` is the model's own source, and for parameters that the engine does not have.
    """
    trainer.model.take_weights_to_save(caller)
    folder, args = Path(directory), trainer.args
    finish_save_in_flight(trainer)
    form, adapter = ModelForm.of(trainer), trainer.model.adapter_to_save()
    agreement = Agreement(f"saving the model to {folder}")
    writes = writes_small_files(args)
    staging = agreement.attempt_if(writes, lambda: open_file_set(trainer, folder, form))
    try:
        path = agreement.settle_first(staging.path if staging is not None else None)
        path = staging.path if staging is not None else path
        files: list[_C.FileDigest] = []
        ranges: list[RangeReport] = []
        if adapter is not None:
            agreement.attempt_if(writes, lambda: files.extend(adapter.write(path)))
        else:
            way, _ = agreed_way(args, path, agreement)
            files, ranges = write_weights(trainer.engine, path, form, way, args, agreement)
        agreement.attempt_if(writes, lambda: files.extend(write_small_files(trainer, path, form)))
        reports = agreement.settle(([digest_tuple(item) for item in files], ranges))
        agreement.attempt_if(writes, lambda: _install(trainer, staging, folder, reports, files))
        agreement.settle(None)
    finally:
        if staging is not None:
            staging.discard()


def write_weights(
    engine: _C.Engine, path: str, form: ModelForm, way: str, args: TrainingArguments, agreement: Agreement
) -> tuple[list[_C.FileDigest], list[RangeReport]]:
    """Write the weight files into the new directory `path` and read them back; collective.

    Returns the digests of whole files that this rank wrote, and of the ranges that it wrote of others.
    """
    from fastsft import _C

    options: dict[str, Any] = {"dtype": form.dtype, "max_shard_size": form.max_shard_size}
    if way != "parallel":
        writes = writes_small_files(args) if args.save_on_each_node else None
        return list(_C.save_model(engine, path, **options, writes=writes)), []
    written = agreement.attempt(
        lambda: _C.write_part(engine, path, **options, with_model=True, with_state=False)
    )
    agreement.settle(None)
    agreement.attempt(lambda: _C.check_model_part(engine, path, **options))
    return [], [range_tuple(item) for item in written[1]] if written else []


def digest_tuple(digest: _C.FileDigest) -> FileReport:
    """A FileDigest that can travel."""
    return digest.name, digest.size, digest.crc32c


def range_tuple(digest: _C.RangeDigest) -> RangeReport:
    """A RangeDigest that can travel."""
    return digest.name, digest.offset, digest.size, digest.crc32c


def joined_digests(reports: Iterable[Report]) -> list[_C.FileDigest]:
    """FileDigests of all files from the reports of all ranks. RuntimeError when bytes are missing."""
    from fastsft import _C

    files: list[_C.FileDigest] = []
    ranges: list[_C.RangeDigest] = []
    for own, parts in reports:
        files += [_C.FileDigest(*item) for item in own]
        ranges += [_C.RangeDigest(*item) for item in parts]
    return [*_C.join_ranges(ranges), *files]


def check_output_directory(source: str | Path, directory: str | Path) -> None:
    """ValueError when a save to `directory` would overwrite the model that training starts from."""
    if Path(source).exists() and Path(directory).exists() and os.path.samefile(source, directory):
        raise ValueError(
            f"{directory}: the output directory is that of the model that is fine-tuned, whose files are "
            "never overwritten, choose another --output_dir"
        )


def prepare_output_directory(source: str | Path, directory: str | Path) -> None:
    """`check_output_directory`, and make the directory and write into it once; by rank 0, collective.

    ValueError when the directory cannot be made or takes no files.
    """
    agreement = Agreement(f"preparing {directory}")
    agreement.attempt_on_first(lambda: check_output_directory(source, directory))
    agreement.attempt_on_first(lambda: _try_writing(Path(directory)))
    agreement.settle(None)


def _try_writing(directory: Path) -> None:
    length, most = len(os.fsencode(os.path.abspath(directory))), os.pathconf("/", "PC_PATH_MAX")
    if length + _BYTES_BELOW > most:
        raise ValueError(
            f"--output_dir: expected a path of at most {most - _BYTES_BELOW} bytes, as files of checkpoints "
            f"are below it and a path may have {most}; got {length}: {str(directory)[:80]}...; choose a "
            "shorter --output_dir"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        got = "a file" if os.path.isfile(directory) else error.strerror
        raise ValueError(
            f"--output_dir: {directory}: expected a directory to write into, got: {got}; choose another "
            "--output_dir"
        ) from error


def check_free_space(directory: Path, needed: int) -> None:
    """RuntimeError with the path, the bytes needed and the bytes free when `needed` bytes do not fit."""
    from fastsft import _C

    free = _C.available_bytes(str(directory))
    if free < needed:
        raise _C.FileError(
            f"{directory}: a save needs {size_text(needed)}, {size_text(free)} are free; free some space or "
            "choose another --output_dir"
        )


def finish_save_in_flight(trainer: TrainedRun) -> None:
    """Wait for the checkpoint that `trainer` writes during its training; collective.

    What it has written so far would be taken for what a crash left. Raises when it fails, as the saver.
    """
    saver = getattr(trainer, "saver", None)
    if saver is not None:
        saver.wait()


def recover_directory(directory: str | Path) -> list[str]:
    """Finish, give back or remove what a crash left in `directory`; the names of what was removed.

    RuntimeError when it is no longer the directory that this process holds.
    """
    from fastsft import _C

    check_still_held(directory)

    finish_file_sets(directory)
    unremoved: list[str] = []
    names = list(_C.remove_leftovers(str(directory), unremoved))
    warn_unremoved(unremoved)
    return names


def finish_file_sets(directory: str | Path) -> None:
    """Give files of a model that a crash left half installed their names.

    A set that cannot be finished is named in a line. It is removed where nothing in it is of use and this
    process holds the directory (ranks/run_lock.py), and left where it is otherwise.
    """
    from fastsft import _C

    for found in _C.finish_file_sets(str(directory), remove_useless=holds_lock(directory)):
        path = Path(directory) / found.name
        done = "removed" if found.removed else "left as it is: take from it what you need, and remove it"
        tell_once(f"{path}, which a save of a model left, cannot be finished: {found.problem}; {done}")


def small_texts(trainer: TrainedRun, save_dtype: str) -> dict[str, str]:
    """JSON files, and code, of a model directory as they are to be now; next to adapters the arguments."""
    arguments = {"training_args.json": trainer.args.to_json_string().rstrip("\n") + "\n"}
    if trainer.model.adapter_bytes() is not None:
        return arguments
    return {**model_texts(trainer.model, getattr(trainer, "tokenizer", None), save_dtype), **arguments}


def model_texts(model: CausalLM, tokenizer: object, save_dtype: str) -> dict[str, str]:
    """Configuration, generation configuration and code of a saved model whose weights have `save_dtype`."""
    config, generation = model.config, model.generation_settings()
    return {
        "config.json": json_text(config_to_save(config, tokenizer, save_dtype, model.class_name())),
        "generation_config.json": json_text(generation_config_to_save(generation, config, tokenizer)),
        **model.code_files(),
    }


def write_texts(texts: Mapping[str, str], directory: str | Path) -> list[_C.FileDigest]:
    """Write small files into a new directory, durable on return. Their digests."""
    from fastsft import _C

    return [_C.write_file(str(Path(directory) / name), content) for name, content in texts.items()]


def write_tokenizer(tokenizer: SavedTokenizer | None, directory: str | Path) -> list[_C.FileDigest]:
    """Write the files of the tokenizer's save_pretrained, in folders too, into a new directory. The digests.

    The files are durable on return; folders are when the directory is committed.
    """
    if tokenizer is None:
        return []
    folder = Path(directory)

    def write(private: str) -> None:
        tokenizer.save_pretrained(private)
        write_compatible_config(private)

    return [write_durably(folder, name, content) for name, content in files_of(write, folder).items()]


def write_durably(directory: Path, name: str, content: str | bytes) -> _C.FileDigest:
    """Write the file `name`, which may be in a folder below `directory`, durable on return. Its digest."""
    from fastsft import _C

    data = content.encode() if isinstance(content, str) else content
    write_below(directory, name, data, durable=True)
    return _C.FileDigest(name, *digest_of(data))


def open_file_set(trainer: TrainedRun, folder: Path, form: ModelForm) -> _C.AtomicDirectory:
    """A staging directory in `folder`, on the rank that writes. RuntimeError when the disk is too small."""
    from fastsft import _C

    check_output_directory(trainer.model.source_directory, folder)
    check_still_held(folder)
    folder.mkdir(parents=True, exist_ok=True)
    recover_directory(folder)
    check_free_space(folder, form.bytes(trainer))
    return _C.AtomicDirectory(str(folder), "model")


def write_small_files(trainer: TrainedRun, path: str, form: ModelForm) -> list[_C.FileDigest]:
    """Configuration, tokenizer and arguments into a new directory, durable on return. Their digests."""
    digests = write_texts(small_texts(trainer, form.dtype), path)
    return digests + write_tokenizer(tokenizer_to_save(trainer), path)


def _install(
    trainer: TrainedRun,
    staging: _C.AtomicDirectory | None,
    folder: Path,
    reports: list[Report],
    own: list[_C.FileDigest],
) -> None:
    """Commit the set and give its files their names; of each node by its own writer, who has `staging`."""
    from fastsft import _C

    assert staging is not None

    each = trainer.args.save_on_each_node
    files = own if each else joined_digests(reports)
    name = _C.file_set_name()
    manifest = _C.Manifest(getattr(trainer.state, "global_step", 0), trainer.engine.world_size, "", files)
    note_file_set(folder, files)
    staging.commit(name, manifest)
    check_still_held(folder)
    install_file_set(folder, name)
