"""Search, verification and loading of checkpoints (docs/spec/reliability.md, sections 1 to 3)."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft import _C
from fastsft.checkpoint.external.foreign_resume import check_foreign, is_foreign, load_foreign
from fastsft.checkpoint.external.transformers_checkpoint import is_transformers_checkpoint
from fastsft.checkpoint.run_identity import STATE_NAME, check_same_run, holds_only_model, read_run_state
from fastsft.checkpoint.saved_run import run_of
from fastsft.checkpoint.state_files import check_run_state, check_trainer_state
from fastsft.model.output_directory import finish_file_sets
from fastsft.ranks.exchange import AllOrNone, on_rank0
from fastsft.ranks.torchrun_job import is_restart
from fastsft.runtime.file_calls import warn_unremoved
from fastsft.runtime.random_state import restore_random_state, saved_random_states
from fastsft.runtime.terminal import say

if TYPE_CHECKING:
    from fastsft.checkpoint.saved_run import SavedRun, TrainerOfRun

_LOGGER = logging.getLogger(__name__)
_UNSAFE_SECONDS = 2.0
_Identity = list[tuple[str, int, int, int, int]]
# For each checkpoint that this process has verified: the identity of the files at that time, and the faults.
_verdicts: dict[Path, tuple[_Identity, list[str]]] = {}


def load_checkpoint(trainer: SavedRun, directory: str | Path) -> dict[str, Any]:
    """Restore weights, optimizer state, step count and random states from a checkpoint. Collective.

    The rank count and the sharding strategy may have changed since the save; random states are restored only
    for the same rank count. Return the content of fastsft_state.json. The caller restores its own state from
    trainer_state.json. Checkpoints of transformers can be loaded, too (external/foreign_resume.py).
    ValueError if the checkpoint does not verify, or belongs to another run.
    """
    trainer = run_of(trainer)
    saved = check_checkpoint(trainer, directory)
    if is_foreign(saved):
        load_foreign(trainer, directory, saved)
        return saved
    agreement = AllOrNone(f"resuming from {directory}")
    _C.load_training_state(trainer.engine, str(directory))
    trainer.model.load_extra_tensors(trainer.engine, str(directory))
    trainer.engine.step_count = saved["optimizer_step"]
    if saved["world_size"] == agreement.world_size:
        agreement.attempt(lambda: restore_random_state(directory, agreement.rank))
        trainer.resumed_states = agreement.attempt(lambda: saved_random_states(directory, agreement.rank))
        agreement.settle(None)
    return saved


def check_checkpoint(trainer: SavedRun, directory: str | Path, use: str = "resumed") -> dict[str, Any]:
    """Check that a checkpoint is intact and that `trainer` continues the same run. Collective.

    Return the content of fastsft_state.json. Rank 0 reads every byte, unless it has verified the same files
    before. `trainer` adopts the checkpoint's micro-batch plan. use: verb for messages, "resumed" or "loaded".
    ValueError if the checkpoint does not verify, or belongs to another run.
    """
    agreement = AllOrNone(f"resuming from {directory}" if use == "resumed" else f"loading {directory}")
    saved = agreement.attempt(lambda: _check(trainer, directory, use, verify=agreement.rank == 0))
    writers = agreement.settle(is_foreign(saved or {}))
    assert saved is not None
    if len(set(writers)) > 1:
        raise ValueError(f"{directory}: the ranks see different checkpoints under this name")
    return saved


def newest_checkpoint(
    output_dir: str | Path, before: int | None = None, restarts: Mapping[str, str] | None = None
) -> str | None:
    """Return the newest checkpoint of `output_dir` that verifies, the same on every rank. Collective.

    None if there is no directory called checkpoint-<step>. Rejected checkpoints are logged with their faults.
    before: limit of the step; later checkpoints and that of the step itself are not considered. restarts:
    starts of a torchrun job (ranks/torchrun_job.py). If given, only checkpoints from an earlier start of the
    same job are considered, and the result is None if none of them verifies. Without `restarts`, ValueError
    with all reasons if there are checkpoints and none verifies.
    """
    what = f"looking for checkpoints in {output_dir}"
    return on_rank0(what, lambda: _newest_verified(Path(output_dir), before, restarts))


def _check(trainer: SavedRun, directory: str | Path, use: str, verify: bool) -> dict[str, Any]:
    if not Path(directory).is_dir():
        there = _C.list_checkpoints(str(Path(directory).parent)) if Path(directory).parent.is_dir() else []
        others = f"; next to it are {', '.join(there)}" if there else ""
        raise ValueError(
            f"{directory}: expected the directory of a checkpoint (--resume_from_checkpoint), there is none"
            f"{others or '; without the flag a run goes on from its newest'}"
        )
    if is_transformers_checkpoint(directory):
        return check_foreign(trainer, directory)
    if verify:
        problems, _ = _verify(Path(directory))
    else:
        problems = _C.verify_directory(str(directory), checksums=False)
    if problems:
        is_model = (Path(directory) / "config.json").is_file() and not _is_named_checkpoint(directory)
        place = Path(directory)
        rest = [name for name in _C.list_checkpoints(str(place.parent)) if name != place.name]
        way = (
            f"; take another: {', '.join(rest)}"
            if rest
            else "; copy it again, or start over: --no_resume True"
        )
        way = f"; it is a model: train on with --model_name_or_path {directory}" if is_model else way
        raise ValueError(f"{directory}: cannot be {use}: {'; '.join(problems)}{way}")
    saved = _check_states(Path(directory))
    check_same_run(trainer, saved, directory)
    return saved


def _is_named_checkpoint(directory: str | Path) -> bool:
    return Path(directory).name.startswith("checkpoint-")


def _check_states(directory: Path) -> dict[str, Any]:
    """Return the content of fastsft_state.json.

    ValueError if fastsft_state.json or trainer_state.json has unexpected types.
    """
    saved = read_run_state(directory)
    check_run_state(saved, directory / STATE_NAME)
    check_trainer_state(directory)
    return saved


def _verify(directory: Path) -> tuple[list[str], bool]:
    """Return a checkpoint's faults, and True if the files were read by this call.

    Prints a message after reading an intact checkpoint. A checkpoint is not read again while the identities
    of its files (inode, size, times) stay the same. The result is not kept if a file was changed within the
    last two seconds, because a further change might leave the same times.
    """
    path, identity = directory.resolve(), _identity(directory)
    known = _verdicts.get(path)
    if known is not None and known[0] == identity:
        return known[1], False
    started, at = time.monotonic(), time.time()
    problems = list(_C.verify_directory(str(directory)))
    if not problems:
        say(f"{directory} verified in {time.monotonic() - started:.1f} s")
    _verdicts.pop(path, None)
    settled = at - max((item[-1] for item in identity), default=0) / 1e9 > _UNSAFE_SECONDS
    if settled and identity == _identity(directory):
        _verdicts[path] = identity, problems
    return problems, True


def _problems(path: Path) -> tuple[list[str], bool]:
    """Return the faults because of which `path` cannot be resumed, and True if they are new.

    Links are followed.
    """
    if not path.is_dir():
        return [f"a link that leads to no directory: {os.readlink(path)}"], True
    if is_transformers_checkpoint(path):
        return [f"transformers wrote it: go on from it with --resume_from_checkpoint {path}"], True
    try:
        problems, is_news = _verify(path)
    except OSError as error:
        return [f"it cannot be read: {error.strerror}"], True
    if not problems and holds_only_model(path):
        problems = ["it holds a model without optimizer state (--save_only_model True)"]
    if not problems:
        try:
            _check_states(path)
        except ValueError as error:
            problems = [str(error)]
    return problems, is_news


def _identity(directory: Path) -> _Identity:
    """Return path, inode, size and times of every file, which change if a file is replaced or written."""
    files = []
    for path in sorted(directory.resolve().rglob("*")):
        status = path.lstat()
        files.append((str(path), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return files


def _is_of_earlier_start(path: Path, starts: Mapping[str, str]) -> bool:
    try:
        before = read_run_state(path).get("launched_by")
    except (ValueError, OSError):
        return False
    return isinstance(before, dict) and is_restart(before, starts)


def _newest_verified(output_dir: Path, before: int | None, restarts: Mapping[str, str] | None) -> str | None:
    if not output_dir.is_dir():
        return None
    finish_file_sets(output_dir)
    unremoved: list[str] = []
    _C.restore_replaced(str(output_dir), unremoved)
    warn_unremoved(unremoved)
    rejected: list[str] = []
    for name in reversed(_C.list_checkpoints(str(output_dir), links=True)):
        if before is not None and int(name.split("-")[1]) >= before:
            continue
        path = output_dir / name
        if restarts is not None and not _is_of_earlier_start(path, restarts):
            continue
        problems, is_news = _problems(path)
        if not problems:
            return str(path)
        rejected.append(f"{path}: {'; '.join(problems)}")
        if is_news:
            _LOGGER.warning("%s cannot be used: %s", path, "; ".join(problems))
    if rejected and restarts is None:
        raise ValueError(
            f"{output_dir}: holds checkpoints, but none can be used; remove or repair them, choose another "
            "--output_dir, or start from step 0 with --no_resume True\n  " + "\n  ".join(rejected)
        )
    return None


_STATE_FILES = ("optimizer-", "random-state-")


def checkpoint_exists(directory: str | Path) -> bool:
    """True on every rank if rank 0 sees `directory`. Collective."""
    return first_existing(directory) is not None


def first_existing(*directories: str | Path) -> str | None:
    """Return the first of `directories` that rank 0 sees, the same on every rank. Collective."""
    what = f"looking for {directories[0]}"
    return on_rank0(what, lambda: next((str(path) for path in directories if Path(path).is_dir()), None))


def load_trained_weights(trainer: SavedRun | TrainerOfRun, directory: str | Path) -> str | None:
    """Load weights and optimizer state from the checkpoint `directory` with the saved bits. Collective.

    If the checkpoint holds only the model (--save_only_model), load the weights in their saved dtype. If it
    does not verify or belongs to another run, load nothing and return the reason; otherwise return None.
    """
    trainer = run_of(trainer)
    try:
        if on_rank0(f"loading {directory}", lambda: _has_only_model(Path(directory))):
            trainer.model.load_checkpoint_weights(trainer.engine, str(directory))
            return None
        saved = check_checkpoint(trainer, directory, "loaded")
    except ValueError as error:
        return str(error)
    if is_foreign(saved):
        load_foreign(trainer, directory, saved)
        trainer.foreign_states = None
        return None
    _C.load_training_state(trainer.engine, str(directory))
    trainer.engine.step_count = saved["optimizer_step"]
    return None


def load_model_alone(trainer: SavedRun, directory: str | Path) -> bool:
    """Load the model from a checkpoint in which only the training state is damaged. Collective.

    The weights have their saved dtype. If other files do not verify, or if the checkpoint belongs to another
    run, load nothing and return False.
    """
    if not on_rank0(f"loading {directory}", lambda: _lacks_only_state(Path(directory))):
        return False
    agreement = AllOrNone(f"loading {directory}")
    agreement.attempt(lambda: check_same_run(trainer, read_run_state(directory), directory))
    try:
        agreement.settle(None)
    except ValueError:
        return False
    trainer.model.load_checkpoint_weights(trainer.engine, str(directory))
    return True


def _lacks_only_state(directory: Path) -> bool:
    problems = _C.verify_directory(str(directory))
    return bool(problems) and all(problem.startswith(_STATE_FILES) for problem in problems)


def _has_only_model(directory: Path) -> bool:
    """True if the checkpoint holds a model without training state. ValueError if that model is damaged."""
    if not holds_only_model(directory):
        return False
    problems = _C.verify_directory(str(directory))
    if problems:
        raise ValueError(f"{directory}: cannot be loaded: {'; '.join(problems)}")
    return True
