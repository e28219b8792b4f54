"""Checkpoints: absent, ignored, or complete and verified (reliability.md, sections 1 to 3)."""

from __future__ import annotations

import hashlib
import itertools
import logging
import time
from pathlib import Path
from typing import Any

from fastsft.model_config import json_text
from fastsft.model_directory import check_free_space, save_model_directory
from fastsft.random_state import restore_random_state, write_random_state
from fastsft.rank_agreement import Agreement
from fastsft.run_identity import check_same_run, read_run_state, write_run_state

_LOGGER = logging.getLogger(__name__)
_STATE_BYTES = 12 + 4  # master and two moments in fp32, and at most as much again for the model files


def save_checkpoint(trainer: Any, directory: str | Path) -> None:
    """Write `directory` (`<output_dir>/checkpoint-<step>`) with model, tokenizer, training state; collective.

    Files go into a temporary directory that takes its name when all of them are durable and the manifest is
    written; then older checkpoints are removed by `save_total_limit`. When one rank fails, all raise and
    nothing is left.
    """
    target = Path(directory)
    agreement = Agreement(f"saving {target}")
    staging = agreement.attempt_on_first(lambda: _open_directory(trainer, target))
    try:
        path = agreement.settle_first(staging.path if staging is not None else None)
        digests = save_model_directory(trainer, path)
        agreement.attempt(lambda: digests.extend(_write_own_files(trainer, path, agreement.rank)))
        agreement.attempt_on_first(lambda: digests.extend(_write_run_files(trainer, path)))
        reports = agreement.settle([(item.name, item.size, item.crc32c) for item in digests])
        agreement.attempt_on_first(lambda: _commit(trainer, staging, target, reports))
        agreement.settle(None)
    finally:
        if staging is not None:
            staging.discard()


def load_checkpoint(trainer: Any, directory: str | Path) -> dict[str, Any]:
    """Restore weights, optimizer, step count and random states of a checkpoint; collective.

    Any number of ranks and any strategy can read it. Returns fastsft_state.json; the caller restores its own
    state from trainer_state.json. ValueError when the checkpoint does not verify, or belongs to another run.
    """
    from fastsft import _C

    agreement = Agreement(f"resuming from {directory}")
    saved = agreement.attempt(lambda: _check(trainer, directory, verify=agreement.rank == 0))
    agreement.settle(None)
    assert saved is not None
    _C.load_training_state(trainer.engine, str(directory))
    trainer.engine.step_count = saved["optimizer_step"]
    if saved["world_size"] == agreement.world_size:
        agreement.attempt(lambda: restore_random_state(directory, agreement.rank))
        agreement.settle(None)
    return saved


def newest_checkpoint(output_dir: str | Path) -> str | None:
    """The newest checkpoint of `output_dir` that verifies, the same on every rank; collective.

    None when there is no directory called checkpoint-<step>. Rejected ones are logged with
    what is wrong. ValueError, with the reason for each, when none verifies.
    """
    agreement = Agreement(f"looking for checkpoints in {output_dir}")
    found = agreement.attempt_on_first(lambda: _newest_verified(Path(output_dir)) or "")
    return agreement.settle_first(found) or None


def put_checkpoints_aside(output_dir: str | Path) -> None:
    """Rename every checkpoint-<step> of `output_dir` to previous-<UTC time>-checkpoint-<step>; collective.

    For a run that starts afresh: those of an earlier run would count in its rotation and be taken by the next
    resume. Nothing is deleted; rank 0 prints one line when there were any.
    """
    agreement = Agreement(f"putting the checkpoints of {output_dir} aside")
    agreement.attempt_on_first(lambda: _put_aside(Path(output_dir)))
    agreement.settle(None)


def _put_aside(output_dir: Path) -> None:
    from fastsft import _C

    names = _C.list_checkpoints(str(output_dir)) if output_dir.is_dir() else []
    if not names:
        return
    stamp = time.strftime("previous-%Y%m%dT%H%M%SZ", time.gmtime())
    tries = itertools.chain([stamp], (f"{stamp}-{number}" for number in itertools.count(2)))
    prefix = next(name for name in tries if not list(output_dir.glob(f"{name}-checkpoint-*")))
    for name in names:
        (output_dir / name).rename(output_dir / f"{prefix}-{name}")
    _C.sync_directory(str(output_dir))
    print(f"--no_resume: {', '.join(names)} in {output_dir} are now called {prefix}-*", flush=True)


def _open_directory(trainer: Any, target: Path) -> Any:
    from fastsft import _C

    target.parent.mkdir(parents=True, exist_ok=True)
    for name in _C.remove_leftovers(str(target.parent)):
        _LOGGER.warning("removed %s, left by an interrupted save", target.parent / name)
    check_free_space(target.parent, trainer.engine.num_parameters * _STATE_BYTES)
    return _C.AtomicDirectory(str(target.parent), str(trainer.state.global_step))


def _write_own_files(trainer: Any, path: str, rank: int) -> list[Any]:
    from fastsft import _C

    digests = list(_C.save_training_state(trainer.engine, path))
    return [*digests, write_random_state(path, rank)]


def _write_run_files(trainer: Any, path: str) -> list[Any]:
    from fastsft import _C

    state = Path(path) / "trainer_state.json"
    _C.replace_file(str(state), json_text(trainer.state.to_json()))
    return [_C.digest_file(str(state)), write_run_state(trainer, path)]


def _commit(trainer: Any, staging: Any, target: Path, reports: list[list[tuple[str, int, int]]]) -> None:
    from fastsft import _C

    files = [_C.FileDigest(*item) for report in reports for item in report]
    layout = hashlib.sha256("".join(trainer.engine.unit_hashes).encode()).hexdigest()[:16]
    manifest = _C.Manifest(trainer.state.global_step, trainer.engine.world_size, layout, files)
    staging.commit(target.name, manifest)
    best = Path(getattr(trainer.state, "best_model_checkpoint", None) or "").name
    _C.rotate_checkpoints(str(target.parent), trainer.args.save_total_limit or 0, [best, target.name])


def _check(trainer: Any, directory: str | Path, verify: bool) -> dict[str, Any]:
    from fastsft import _C

    problems = _C.verify_directory(str(directory), checksums=verify)
    if problems:
        raise ValueError(f"{directory}: cannot be resumed: {'; '.join(problems)}")
    saved = read_run_state(directory)
    check_same_run(trainer, saved, directory)
    return saved


def _newest_verified(output_dir: Path) -> str | None:
    from fastsft import _C

    if not output_dir.is_dir():
        return None
    _C.restore_replaced(str(output_dir))
    rejected: list[str] = []
    for name in reversed(_C.list_checkpoints(str(output_dir))):
        path = output_dir / name
        started = time.monotonic()
        problems = _C.verify_directory(str(path))
        if not problems:
            _LOGGER.info("%s verified in %.1f s", path, time.monotonic() - started)
            return str(path)
        rejected.append(f"{path}: {'; '.join(problems)}")
        _LOGGER.warning("%s cannot be used: %s", path, "; ".join(problems))
    if rejected:
        raise ValueError(
            f"{output_dir}: holds checkpoints, but none can be used; remove or repair them, choose another "
            "--output_dir, or start afresh with --no_resume True\n  " + "\n  ".join(rejected)
        )
    return None
