"""A checkpoint that is used once more when its run is over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastsft import _C
from fastsft.checkpoint.checkpoint import check_checkpoint
from fastsft.checkpoint.external.foreign_resume import is_foreign, load_foreign
from fastsft.checkpoint.run_identity import check_same_run, holds_only_model, read_run_state
from fastsft.ranks.agreement import Agreement
from fastsft.runtime.file_calls import warn_unremoved
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft.checkpoint.saved_run import SavedRun

_STATE_FILES = ("optimizer-", "random-state-")


def checkpoint_exists(directory: str | Path) -> bool:
    """True if rank 0 sees `directory`; the same on every rank, collective."""
    return first_existing(directory) is not None


def first_existing(*directories: str | Path) -> str | None:
    """The first of `directories` that rank 0 sees; the same on every rank, collective."""
    agreement = Agreement(f"looking for {directories[0]}")
    found = agreement.attempt_on_first(
        lambda: next((str(each) for each in directories if Path(each).is_dir()), "")
    )
    return agreement.settle_first(found) or None


def load_trained_weights(trainer: SavedRun, directory: str | Path) -> str | None:
    """Weights and optimizer as saved in `directory`, bit by bit, and nothing else; collective.

    Of a checkpoint that holds only the model (--save_only_model), the weights in their saved type. Why the
    checkpoint cannot be used, when it does not verify or belongs to another run: nothing is loaded then.
    """
    agreement = Agreement(f"loading {directory}")
    only_model = agreement.attempt_on_first(lambda: _verify(Path(directory)))
    try:
        if agreement.settle_first(only_model) == "only model":
            trainer.model.load_saved(trainer.engine, str(directory))
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
    """The model of a checkpoint whose training state alone is damaged, in its saved type; collective.

    False, and nothing is loaded, where its other files do not verify, or it belongs to another run.
    """
    agreement = Agreement(f"loading {directory}")
    found = agreement.attempt_on_first(lambda: _lacks_only_state(Path(directory)))
    if not agreement.settle(found)[0]:
        return False
    agreement.attempt(lambda: check_same_run(trainer, read_run_state(directory), directory))
    try:
        agreement.settle(None)
    except ValueError:
        return False
    trainer.model.load_saved(trainer.engine, str(directory))
    return True


def _lacks_only_state(directory: Path) -> bool:
    problems = _C.verify_directory(str(directory))
    return bool(problems) and all(problem.startswith(_STATE_FILES) for problem in problems)


def _verify(directory: Path) -> str:
    """Contents of the checkpoint; ValueError when it is damaged."""
    if not holds_only_model(directory):
        return "training state"
    problems = _C.verify_directory(str(directory))
    if problems:
        raise ValueError(f"{directory}: cannot be loaded: {'; '.join(problems)}")
    return "only model"


def keep_only(directory: str | Path, source: str = "") -> None:
    """Remove the other checkpoints of fastsft next to `directory`; by rank 0, collective.

    A directory called checkpoint-<step> counts as one when its manifest and the sizes of its files verify, as
    for save_total_limit. What another program wrote, and what is damaged, stays; transformers removes every
    directory of that name. source: the name of one that stays as well.
    """
    path = Path(directory)
    agreement = Agreement(f"removing the checkpoints next to {path}")
    agreement.attempt_on_first(lambda: _remove_others(path, source))
    agreement.settle(None)


def _remove_others(kept: Path, source: str) -> None:
    for name in _C.list_checkpoints(str(kept.parent)):
        other = kept.parent / name
        if name not in (kept.name, source) and not _C.verify_directory(str(other), checksums=False):
            _remove_other(other)


def _remove_other(other: Path) -> None:
    try:
        aside = _C.delete_directory(str(other))
    except _C.FileError as error:
        warn_unremoved([str(error)])
        return
    if aside:
        tell(f"{other} is removed; what fastsft did not write there is now in {aside}")
