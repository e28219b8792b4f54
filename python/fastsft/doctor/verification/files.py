"""Checks files against recorded checksums, and the state of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fastsft import _C
from fastsft.checkpoint.finished_run import RECORD_NAME
from fastsft.checkpoint.run_identity import STATE_NAME, holds_only_model, read_run_state
from fastsft.checkpoint.state_files import check_run_state, check_trainer_state
from fastsft.doctor.check import WARNING, ExaminedDirectory, ProblemError
from fastsft.model.stored_weights import BLOCK, DTYPES, as_tensor, extremes
from fastsft.planning.devices import size_text
from fastsft.runtime.output_files import digest_of_file, recorded_files
from fastsft.runtime.regular_files import read_json_object

_BROKEN_OFF = re.compile(r"\.fastsft-(tmp|new|old)-")
_OPTIMIZER = "optimizer-rank-*.safetensors"
_MOST_NAMED = 5


def check_files(subject: ExaminedDirectory) -> str:
    """Check files against the checksums in the manifest, or against those of the last write by fastsft."""
    folder = subject.directory
    if (folder / "manifest.json").exists():
        problems = list(_C.verify_directory(str(folder)))
        if problems:
            raise ProblemError(named(problems), "take another checkpoint, or copy this one again")
        manifest = _C.read_manifest(str(folder))
        size = size_text(sum(file.size for file in manifest.files))
        return f"{len(manifest.files)} files, {size}, checksums as in the manifest{_step(subject, manifest)}"
    if subject.is_checkpoint:
        raise ProblemError("no manifest.json: the checkpoint was never finished", "take another checkpoint")
    return _against_record(folder)


def _step(subject: ExaminedDirectory, manifest: _C.Manifest) -> str:
    return f" of step {manifest.step}" if subject.is_checkpoint else ""


def _against_record(folder: Path) -> str:
    """Check the files of a finished model against the last checksum that was recorded for each."""
    absent = [name for name in _files_of_end(folder) if not (folder / name).is_file()]
    if absent:
        raise ProblemError(
            f"missing, and the run left them: {named(absent)}", "take the model of a checkpoint"
        )
    record = {
        name: digests[-1] for name, digests in recorded_files(folder).items() if (folder / name).is_file()
    }
    changed = [name for name, digest in record.items() if digest_of_file(folder / name) != digest]
    weights = [name for name in changed if name.endswith(".safetensors")]
    if weights:
        raise ProblemError(
            f"changed since fastsft wrote them: {named(weights)}",
            "take the model from a checkpoint, or copy it again",
        )
    left = sorted(path.name for path in folder.iterdir() if _BROKEN_OFF.match(path.name))
    if left:
        raise ProblemError(
            f"a save was broken off: {named(left)}",
            "the same training command finishes or removes it",
            WARNING,
        )
    if changed:
        raise ProblemError(
            f"changed since fastsft wrote them: {named(changed)}", "nothing, if you changed them", WARNING
        )
    if not record:
        return "fastsft has not written them: there are no checksums to compare"
    return f"{len(record)} files, checksums as fastsft noted them"


def _files_of_end(folder: Path) -> list[str]:
    """Return the names of the files that a finished run recorded; empty if there is no record."""
    try:
        files = read_json_object(folder / RECORD_NAME).get("files")
    except ValueError:
        return []
    return [str(name) for name in files] if isinstance(files, dict) else []


def check_state(subject: ExaminedDirectory) -> str:
    """Check the state from which a run resumes: progress, optimizer and random generators."""
    folder = subject.directory
    if not subject.is_checkpoint:
        return "a model, no checkpoint: there is no state of a run"
    if holds_only_model(folder):
        return "a model alone (--save_only_model True): no run can resume from it"
    saved = read_run_state(folder)
    check_run_state(saved, folder / STATE_NAME)
    check_trainer_state(folder)
    faults = [fault for path in sorted(folder.glob(_OPTIMIZER)) for fault in _faults(path)]
    if faults:
        raise ProblemError(named(faults), "take another checkpoint")
    ranks = saved["world_size"]
    return (
        f"step {saved['step']} of {ranks} rank{'' if ranks == 1 else 's'}; optimizer and progress are there"
    )


def _faults(path: Path) -> Iterator[str]:
    """Yield a line for each tensor of the optimizer state with values that are not finite."""
    import torch

    reader = _C.SafetensorsReader(str(path))
    for entry in reader.tensors:
        if entry.dtype in DTYPES:
            bad, _ = extremes(torch.split(as_tensor(reader.bytes(entry.name), entry.dtype), BLOCK))
            if bad:
                yield f"{path.name}: {entry.name}: {bad:,} values are not finite"


def named(names: list[str]) -> str:
    """Return the first few names, each on a line, and how many further names there are."""
    more = len(names) - _MOST_NAMED
    return "\n".join(names[:_MOST_NAMED]) + (f"\nand {more} more" if more > 0 else "")
