"""Writes a complete Hugging Face model directory (trainer_semantics.md, sections 19 to 24)."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from fastsft.model_config import (
    config_to_save,
    generation_config_to_save,
    json_text,
    read_generation_config,
    resolve_save_dtype,
)
from fastsft.rank_agreement import Agreement

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


def save_model_directory(trainer: Any, directory: str | Path) -> list[Any]:
    """Write weights, config, generation config, tokenizer and training_args.json; collective.

    Weights are streamed to rank 0 in `--save_dtype` and split at `--max_shard_size`; every file appears under
    its name only when it is complete and durable, and weight files of an earlier save are removed. Returns
    the digests of the files on rank 0. ValueError when `directory` is the model's own source directory.
    """
    from fastsft import _C

    folder = Path(directory)
    agreement = Agreement(f"saving the model to {folder}")
    save_dtype = resolve_save_dtype(trainer)
    limit = parse_size(trainer.args.max_shard_size)
    staging: Any = agreement.attempt_on_first(lambda: _open_staging(trainer, folder, save_dtype))
    try:
        agreement.attempt_on_first(lambda: _stage_small_files(trainer, Path(staging.path), save_dtype))
        agreement.settle(None)
        digests = list(_C.save_model(trainer.engine, str(folder), dtype=save_dtype, max_shard_size=limit))
        agreement.attempt_on_first(lambda: digests.extend(_put_in_place(Path(staging.path), folder)))
        agreement.settle(None)
    finally:
        if staging is not None:
            staging.discard()
    return digests


def parse_size(size: str | int) -> int:
    """Bytes of "5GB" (decimal), "5GiB" (binary) or a number. ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(size))
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(f'--max_shard_size: expected a size like "5GB" or "500MB", got "{size}"')
    value = int(float(match[1]) * unit)
    if value <= 0:
        raise ValueError(f"--max_shard_size: expected more than 0 bytes, got {size}")
    return value


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
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ValueError(
            f"--output_dir: {directory}: expected a directory to write into, got: {error.strerror}; choose "
            "another --output_dir"
        ) from error


def check_free_space(directory: Path, needed: int) -> None:
    """RuntimeError with the path, the bytes needed and the bytes free when `needed` bytes do not fit."""
    from fastsft import _C

    free = _C.available_bytes(str(directory))
    if free < needed:
        raise RuntimeError(
            f"{directory}: saving needs {needed} bytes, {free} are free; free some space or choose another "
            "--output_dir"
        )


def _open_staging(trainer: Any, folder: Path, save_dtype: str) -> Any:
    """A temporary directory inside `folder`, for everything but the weights."""
    from fastsft import _C

    check_output_directory(trainer.model.source_directory, folder)
    folder.mkdir(parents=True, exist_ok=True)
    _C.remove_leftovers(str(folder))
    check_free_space(folder, trainer.engine.num_parameters * _BYTES[save_dtype])
    return _C.AtomicDirectory(str(folder), "files")


def _stage_small_files(trainer: Any, staging: Path, save_dtype: str) -> None:
    from fastsft import _C

    tokenizer, config = getattr(trainer, "tokenizer", None), trainer.model.config
    files = {
        "config.json": json_text(config_to_save(config, tokenizer, save_dtype)),
        "generation_config.json": json_text(
            generation_config_to_save(
                read_generation_config(trainer.model.source_directory), config, tokenizer
            )
        ),
        "training_args.json": trainer.args.to_json_string().rstrip("\n") + "\n",
    }
    for name, content in files.items():
        _C.replace_file(str(staging / name), content)
    if tokenizer is not None:
        tokenizer.save_pretrained(str(staging))


def _put_in_place(staging: Path, folder: Path) -> list[Any]:
    from fastsft import _C

    names = sorted(path.name for path in staging.iterdir() if not path.name.startswith("."))
    for name in names:
        _C.sync_file(str(staging / name))
    for name in names:
        os.replace(staging / name, folder / name)
    _C.sync_directory(str(folder))
    return [_C.digest_file(str(folder / name)) for name in names]
