"""Checks the output directory of a run and its disk: permissions, checkpoints, space and speed."""

from __future__ import annotations

import fcntl
import math
import os
import struct
import tempfile
import time
from pathlib import Path

from fastsft.arguments.engine_flags import optimizer_state_bytes
from fastsft.doctor.check import ExaminedRun, NotCheckedError, ProblemError
from fastsft.model.output_directory import check_output_directory
from fastsft.planning.devices import size_text
from fastsft.runtime.regular_files import read_json_object

_LOCK_NAME = ".fastsft-lock"
_TESTED_BYTES, _TESTED_SECONDS = 1 << 26, 2.0
_CHUNK = bytes(1 << 24)
_SPARED = 1 << 28  # the test does not write if fewer bytes are free
_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}


def nearest_directory(path: Path) -> Path:
    """Return `path` if it exists, else its nearest parent that exists."""
    nearest = path.absolute()
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    return nearest


def _place(run: ExaminedRun) -> Path:
    """Return the output directory, or its nearest parent that exists. NotCheckedError if that is a file."""
    there = nearest_directory(run.output_dir)
    if not there.is_dir():
        raise NotCheckedError(f"needs an --output_dir, and {there} is a file")
    return there


def check_output(run: ExaminedRun) -> str:
    """Check that --output_dir is writable, is not the model's directory, and is not used by another run."""
    folder = run.output_dir
    there = nearest_directory(folder)
    if not there.is_dir():
        raise ProblemError(f"--output_dir {folder}: {there} is a file", "choose another --output_dir")
    if run.model is not None:
        check_output_directory(run.model.source_directory, folder)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
    except OSError as error:
        raise ProblemError(
            f"--output_dir {folder}: {there} takes no files: {error.strerror}", "choose another --output_dir"
        ) from None
    holder = lock_holder(folder)
    if holder is not None:
        raise ProblemError(
            f"{folder} is in use by another run ({holder})",
            "wait for it, stop it, or choose another --output_dir",
        )
    made = "" if folder.is_dir() else ", the run makes it"
    return f"{folder} can be written to{made}; no run holds it"


def lock_holder(folder: Path) -> str | None:
    """Return host, process and start time of the run that has locked `folder`; None if no run has.

    The check does not take the lock itself.
    """
    try:
        descriptor = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(
            f"{folder / _LOCK_NAME}: expected the lock file of a run, cannot be opened: {error.strerror}"
        ) from None
    try:
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, request)
        if struct.unpack("hhqqi4x", answer)[0] == fcntl.F_UNLCK:
            return None
        holder = os.read(descriptor, 512).decode(errors="replace").partition("\n")[0]
        return holder or "a run that has not said who it is"
    finally:
        os.close(descriptor)


def check_checkpoints(run: ExaminedRun) -> str:
    """Describe how a run with these flags treats existing checkpoints."""
    from fastsft import _C

    _place(run)
    folder, args = run.output_dir, run.resolved_args
    requested = args.resume_from_checkpoint
    if isinstance(requested, str):
        return f"resumes from {requested}: {_named_usable(Path(requested))}"
    names = list(_C.list_checkpoints(str(folder))) if folder.is_dir() else []
    if args.no_resume:
        return (
            f"starts from step 0; {len(names)} checkpoints are put aside" if names else "starts from step 0"
        )
    if not names:
        if requested is True:
            raise ProblemError(f"--resume_from_checkpoint True: none in {folder}", "leave the flag out")
        return "none there: starts from step 0"
    reasons = []
    for name in reversed(names):
        try:
            usable = _usable(folder / name)
        except ProblemError as error:
            reasons.append(str(error))
            continue
        text = f"{_finished(folder)}resumes from {name} of {len(names)} there: {usable}"
        if reasons:
            raise ProblemError("\n".join([text, *reasons]), "newer ones cannot be used", "warning")
        return text
    raise ProblemError(
        "\n".join(["none of those there can be used", *reasons]),
        "remove or repair them, choose another --output_dir, or start from step 0 with --no_resume True",
    )


def _named_usable(path: Path) -> str:
    """Describe the checkpoint that --resume_from_checkpoint names, which transformers may have written."""
    from fastsft.checkpoint.external.transformers_checkpoint import (
        TransformersCheckpoint,
        is_transformers_checkpoint,
    )

    if not is_transformers_checkpoint(path):
        return _usable(path)
    try:
        TransformersCheckpoint.of(path)
    except ValueError as error:
        raise ProblemError(str(error), "name another checkpoint") from None
    return "transformers wrote it; weights, AdamW's moments and step are carried over"


def _usable(path: Path) -> str:
    """Describe a checkpoint. ProblemError if the run could not resume from it."""
    from fastsft import _C
    from fastsft.checkpoint.external.transformers_checkpoint import is_transformers_checkpoint
    from fastsft.checkpoint.run_identity import holds_only_model

    if is_transformers_checkpoint(path):
        raise ProblemError(f"{path}: transformers wrote it", f"name it: --resume_from_checkpoint {path}")
    problems = list(_C.verify_directory(str(path), checksums=False)) if path.is_dir() else ["no directory"]
    if not problems and holds_only_model(path):
        problems = ["it holds a model without optimizer state (--save_only_model True)"]
    if problems:
        raise ProblemError(f"{path}: {'; '.join(problems)}", "choose another checkpoint")
    return "complete; checksums, and whether it is of this run, are not checked"


def _finished(folder: Path) -> str:
    from fastsft.checkpoint.finished_run import RECORD_NAME

    try:
        step = int(read_json_object(folder / RECORD_NAME)["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return ""
    return f"a run ended there at step {step}, and the same run would return at once; another one "


def checkpoint_bytes(run: ExaminedRun) -> tuple[int, int]:
    """Return the bytes of the saved weights and of a whole checkpoint.

    NotCheckedError if the model could not be opened.
    """
    adapter, args = run.need("model", "a readable model").adapter_bytes(), run.resolved_args
    if adapter is not None:
        state = 0 if args.save_only_model else int(adapter // 4 * (4 + optimizer_state_bytes(args)))
        return adapter, adapter + state
    weights = _model_bytes(run)
    state = 0 if args.save_only_model else int(_parameters(run) * (4 + optimizer_state_bytes(args)))
    return weights, weights + state


def _parameters(run: ExaminedRun) -> int:
    """Count the model's parameters, without adapters."""
    return sum(math.prod(shape) for _, shape in run.shapes)


def _model_bytes(run: ExaminedRun) -> int:
    """Return the model's size in --save_dtype [bytes].

    NotCheckedError if --save_dtype is auto and the source model's dtype is unknown.
    """
    auto = run.resolved_args.save_dtype == "auto"
    dtype = run.need("weights_dtype", "weights that can be read") if auto else run.resolved_args.save_dtype
    return _parameters(run) * _WIDTHS[dtype]


def _merged_bytes(run: ExaminedRun) -> int:
    """Return the merged model's size [bytes]; 0 if --save_merged is not given."""
    return _model_bytes(run) if run.lora_args is not None and run.lora_args.save_merged else 0


def check_space(run: ExaminedRun) -> str:
    """Check that the disk has room for --save_total_limit + 1 checkpoints, the final and the merged model."""
    from fastsft import _C

    (weights, checkpoint), merged = checkpoint_bytes(run), _merged_bytes(run)
    place = _place(run)
    folder, args = run.output_dir, run.resolved_args
    free = int(_C.available_bytes(str(place)))
    there = len(_C.list_checkpoints(str(folder))) if folder.is_dir() else 0
    saves = args.save_strategy != "no"
    limit = args.save_total_limit if args.save_total_limit and args.save_total_limit > 0 else None
    kept = max(0, (limit or 1) + 1 - (0 if args.no_resume else there)) if saves else 1
    needed = kept * checkpoint + weights + merged
    sizes = f"a checkpoint {size_text(checkpoint)}, the model {size_text(weights)}"
    sizes += f"{f', merged {size_text(merged)}' if merged else ''}, {size_text(free)} free"
    if free < needed:
        raise ProblemError(
            f"{kept} checkpoints and the model need {size_text(needed)}: {sizes}",
            "free some space, choose another --output_dir, or lower --save_total_limit",
        )
    if saves and limit is None:
        fit = (free - weights - merged) // max(checkpoint, 1)
        raise ProblemError(
            f"all checkpoints are kept, {fit:,} fit: {sizes}", "--save_total_limit bounds them", "warning"
        )
    more = f"{kept} more checkpoint{'' if kept == 1 else 's'}"
    return f"{more} and the model need {size_text(needed)}: {sizes}"


def check_write_rate(run: ExaminedRun) -> str:
    """Measure the disk's write rate.

    Blocks of 16 MiB are written to an unnamed file and synced, up to four times within 2 s.
    """
    from fastsft import _C

    there = _place(run)
    if _C.available_bytes(str(there)) < _SPARED:
        raise NotCheckedError(f"less than {size_text(_SPARED)} are free in {there}")
    written, start = 0, time.monotonic()
    with tempfile.TemporaryFile(dir=there, buffering=0) as file:
        while written < _TESTED_BYTES and time.monotonic() - start < _TESTED_SECONDS:
            written += file.write(_CHUNK)
            # syncs each block, because a single sync of all blocks may take long on a slow disk
            os.fsync(file.fileno())
    rate = written / max(time.monotonic() - start, 1e-6)
    text = f"{size_text(written)} written and synced at {size_text(rate)}/s"
    try:
        seconds = checkpoint_bytes(run)[1] / rate
    except NotCheckedError:
        return text
    return f"{text}: about {seconds:,.1f} s for a checkpoint"
