"""Checkpoints during training: the training thread copies the state, and a background thread writes it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft import _C
from fastsft.arguments.engine_flags import optimizer_state_bytes
from fastsft.checkpoint.content import CheckpointContent, commit_checkpoint, explain, recover
from fastsft.checkpoint.save import CheckpointSave, LivePart, Part
from fastsft.checkpoint.saved_run import run_of
from fastsft.model.model_save import ModelForm, finish_save_in_flight
from fastsft.model.output_directory import check_free_space
from fastsft.planning.devices import available_host_memory, size_text
from fastsft.ranks.exchange import AllOrNone, on_any_rank
from fastsft.ranks.output_directory import SaveMode, agreed_save_mode, writes_small_files
from fastsft.ranks.process_group import gather_objects
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft.checkpoint.saved_run import SavedRun, TrainerOfRun

_MASTER_BYTES = 4  # size of a float32 master weight [bytes]
_WORTH_SAYING = 1.0  # wait for the previous save above which a message is printed [s]
_GRACE = 30.0  # time to wait for the reports of other ranks after an error on this rank [s]


class CheckpointSaver:
    """The writer of `trainer`'s checkpoints, one at a time. Every rank has a saver.

    `save`, `poll` and `wait` are collective: all ranks call them in the same order, from the training thread.
    If a save fails on any rank, they raise on all ranks: ValueError if the user can fix the fault, otherwise
    RuntimeError. With `--on_save_error continue` they print a message instead, and training goes on.
    """

    def __init__(self, trainer: SavedRun | TrainerOfRun) -> None:
        self._trainer = run_of(trainer)
        self._save: CheckpointSave | None = None
        self._latest: Path | None = None
        self._mode: SaveMode | None = None  # the first save chooses the mode of all saves
        self._behind = bool(self._trainer.args.async_save)
        self._staging: _C.CheckpointStaging | None = None

    def save(self, directory: str | Path) -> None:
        """Save the current state to `directory`. Afterwards training may change the state again."""
        target = Path(directory)
        self.wait_before(target)
        self._latest = target
        try:
            self._begin(target)
        except Exception as error:  # raised on all ranks, which have the same --on_save_error
            self._failed(target, error)

    def wait_before(self, directory: str | Path) -> None:
        """Wait until the save in flight, if any, is done. Then a save to `directory` can begin."""
        earlier, started = self._save, time.monotonic()
        self.wait()
        waited = time.monotonic() - started
        if earlier is not None and waited > _WORTH_SAYING:
            tell(f"{Path(directory).name}: waited {waited:.1f} s for {earlier.target.name} to be written")

    def check_room(self) -> None:
        """Check that the disk has room for a checkpoint and the final models. Collective.

        Called before the first step. Remains of an interrupted save are removed first. If there is too little
        room, raise RuntimeError (_C.FileError), or print a warning with `--on_save_error continue`.
        """
        trainer, folder = self._trainer, Path(self._trainer.args.output_dir or ".")

        def check() -> None:
            try:
                _check_room_of_run(trainer, folder)
            except _C.FileError as error:
                if trainer.args.on_save_error == "stop":
                    raise
                tell(f"warning: {error}")

        agreement = AllOrNone(f"looking for room in {folder}")
        agreement.attempt_if(writes_small_files(trainer.args), check)
        agreement.settle(None)

    def poll(self) -> None:
        """Conclude the save in flight if it is written; do not wait. Called after every step. Collective."""
        if self._save is not None and on_any_rank(self._save.done()):
            self._settle()

    def wait(self) -> None:
        """Wait until the save in flight is committed or has failed. Collective."""
        if self._save is not None:
            self._settle()

    @property
    def in_flight(self) -> bool:
        """True if a save is being written during training."""
        return self._save is not None

    def has(self, directory: str | Path) -> bool:
        """True if the latest save was to `directory` and has not failed. The save may still be in flight."""
        return self._latest == Path(directory)

    def remember(self, directory: Path | None) -> None:
        """Note that the checkpoint `directory` holds the current state; None: no checkpoint does."""
        self._latest = directory

    def abandon(self, error: BaseException) -> None:
        """Wait a limited time for the save in flight, after `error` on this rank alone. Raise nothing.

        After a KeyboardInterrupt (a second Ctrl-C), do not wait at all.
        """
        save, self._save = self._save, None
        if save is None:
            return
        hurried = isinstance(error, KeyboardInterrupt)
        save.give_up_in(0 if hurried else _GRACE)
        save.join(0.0 if hurried else None)
        if save.verdict is not None and save.verdict.error is not None:
            tell(f"{save.target} was not finished: {save.verdict.error}")

    def _settle(self) -> None:
        save, self._save = self._save, None
        assert save is not None
        save.join()
        if on_any_rank(save.is_stranded):
            reports = gather_objects(save.report)
            if launch().rank == 0 and save.verdict is None:
                save.conclude(reports)
        verdict = gather_objects(save.verdict)[0]
        assert verdict is not None
        if verdict.error is None:
            self._upload(save.target)
            return

        kind = ValueError if verdict.user else _C.PeerFailedError
        self._failed(save.target, save.failure or kind(verdict.error))

    def _failed(self, target: Path, error: Exception) -> None:
        if self._latest == target:
            self._latest = None
        self._trainer.save_failed(target)
        if self._trainer.args.on_save_error == "stop" or isinstance(error, _C.CollectiveError):
            raise error
        tell(f"{error}; training goes on without this checkpoint (--on_save_error continue)")

    def _begin(self, target: Path) -> None:
        trainer, agreement = self._trainer, AllOrNone(f"saving {target}")
        directory = agreement.attempt_if(
            writes_small_files(trainer.args), lambda: _open_directory(trainer, target)
        )
        try:
            path = agreement.settle(directory.path if directory is not None else None)[0]
            if path is None:  # the target is a protected directory
                self._latest = None
                trainer.save_failed(target)
                return
            path = directory.path if directory is not None else path
            mode = self._choose(path, agreement)
            content = agreement.attempt(lambda: CheckpointContent.of(trainer))
            if mode == "stream":
                agreement.settle(None)
                assert content is not None
                self._stream(target, path, directory, content, agreement)
                return
            self._write_parts(target, path, directory, content, agreement, streamed=mode == "mixed")
        except BaseException:
            if directory is not None:
                directory.discard()
            raise

    def _write_parts(
        self,
        target: Path,
        path: str,
        directory: _C.AtomicDirectory | None,
        content: CheckpointContent | None,
        agreement: AllOrNone,
        *,
        streamed: bool,
    ) -> None:
        trainer = self._trainer
        part: Part | None = LivePart(trainer.engine)
        if self._behind:
            part = agreement.attempt(self._stage)
        agreement.settle(None)
        assert content is not None and part is not None
        form = content.form
        files: list[_C.FileDigest] | None = None if content.adapter is None else []
        if streamed and files is None:
            files = _C.save_model(trainer.engine, path, dtype=form.dtype, max_shard_size=form.max_shard_size)
        limit, needed = trainer.args.save_total_limit or 0, needed_bytes(trainer)
        self._save = CheckpointSave(target, path, directory, content, part, limit, needed, streamed=files)
        if self._behind:
            self._save.start()
        else:
            self._save.run_here()
            self._settle()

    def _stage(self) -> _C.CheckpointStaging:
        if self._staging is None:
            self._staging = _C.CheckpointStaging(self._trainer.engine)
        self._staging.stage()
        return self._staging

    def _choose(self, path: str, agreement: AllOrNone) -> SaveMode:
        """Return the mode of all saves, which the first save chooses. Print why a mode is not parallel."""
        if self._mode is not None:
            return self._mode
        self._mode, why = agreed_save_mode(self._trainer.args, path, agreement)
        if why:
            tell(f"model files are gathered and written by rank 0: {why}")
        if self._behind and self._mode != "stream":
            self._behind = self._fits_beside(agreement)
        return self._mode

    def _fits_beside(self, agreement: AllOrNone) -> bool:
        needs = _C.CheckpointStaging(self._trainer.engine).nbytes
        there = available_host_memory() // launch().local_world_size
        sizes = agreement.settle((needs, there))
        short = [(needs, there) for needs, there in sizes if needs > there]
        if short:
            tell(
                f"checkpoints are written while training waits: a copy takes {size_text(short[0][0])} of "
                f"host memory a rank, and {size_text(short[0][1])} is there"
            )
        return not short

    def _stream(
        self,
        target: Path,
        path: str,
        directory: _C.AtomicDirectory | None,
        content: CheckpointContent,
        agreement: AllOrNone,
    ) -> None:
        """Write the whole state on rank 0, or on local rank 0 of every node. Training waits meanwhile."""
        args, engine, form = self._trainer.args, self._trainer.engine, content.form
        here = writes_small_files(args)
        writes = here if args.save_on_each_node else None
        files: list[_C.FileDigest] = []
        if content.adapter is None:
            options: dict[str, Any] = {"dtype": form.dtype, "max_shard_size": form.max_shard_size}
            files += _C.save_model(engine, path, **options, writes=writes)
        if content.with_state:
            files += _C.stream_training_state(engine, path, writes=writes)
        states = gather_objects(content.random_states)

        def finish() -> None:
            for rank, state in enumerate(states):
                files.extend(content.write_random_state(path, rank, state))
            files.extend(content.write_run_files(path))
            commit_checkpoint(directory, target, content, files, args.save_total_limit or 0)

        agreement.attempt_if(here, finish)
        agreement.settle(None)
        self._upload(target)

    def _upload(self, target: Path) -> None:
        """Start the upload of a committed checkpoint (--push_to_hub)."""
        uploads = getattr(self._trainer, "uploads", None)
        if uploads is not None:
            uploads.checkpoint(target)


def save_checkpoint(trainer: SavedRun | TrainerOfRun, directory: str | Path) -> None:
    """Save one checkpoint and wait until it is committed. Collective.

    If a script gave the model as an object, changes of that object are saved. Errors are those of
    CheckpointSaver, and ValueError for parameters that the engine does not have.
    """
    trainer = run_of(trainer)
    trainer.model.load_weights_before_save("save_checkpoint")
    finish_save_in_flight(trainer)
    saver = CheckpointSaver(trainer)
    saver.save(directory)
    saver.wait()


def _check_room(trainer: SavedRun, folder: Path) -> int:
    """Return the size of a checkpoint [bytes]. _C.FileError if the disk of `folder` has less room."""
    recover(folder)
    needed = needed_bytes(trainer)
    check_free_space(folder, needed)
    return needed


def _check_room_of_run(trainer: SavedRun, folder: Path) -> None:
    """Raise RuntimeError unless the disk has room for the final models, and for a checkpoint if one is due.

    If rotation will delete an old checkpoint, the space of that checkpoint counts as free for the models.
    """
    recover(folder)
    checkpoint, models = needed_bytes(trainer) if _will_save(trainer) else 0, trainer.bytes_at_end
    limit, there = trainer.args.save_total_limit or 0, len(_C.list_checkpoints(str(folder)))
    check_free_space(folder, checkpoint)
    after = models + (0 if 0 < limit <= there else checkpoint)
    free = _C.available_bytes(str(folder))
    if free < after:
        also = f" next to a checkpoint of {size_text(checkpoint)}" if after > models else ""
        raise _C.FileError(
            f"{folder}: the model at the end of the run needs {size_text(models)}{also}, {size_text(free)} "
            "are free; free some space or choose another --output_dir; with --on_save_error continue this is "
            "a warning, and the end of the run waits for room"
        )


def _will_save(trainer: SavedRun) -> bool:
    """True if a checkpoint will be saved. With `--save_strategy best` the first evaluation causes a save."""
    state, strategy = trainer.state, trainer.args.save_strategy
    if strategy == "best":
        return trainer.args.eval_strategy != "no" and state.best_global_step is None
    return strategy != "no" and state.global_step < trainer.plan.max_steps


def _open_directory(trainer: SavedRun, target: Path) -> _C.AtomicDirectory | None:
    """Make the temporary directory of a save. If `target` is protected, print a message and return None."""
    if why := _C.protection_of(str(target)):
        tell(f"{target} is not saved: {why}; training goes on")
        return None
    needed = _check_room(trainer, target.parent)
    try:
        return _C.AtomicDirectory(str(target.parent), str(trainer.state.global_step))
    except RuntimeError as error:
        raise explain(error, str(target.parent), needed) from None


def needed_bytes(trainer: SavedRun) -> int:
    """Return the size of a checkpoint [bytes]: model files and, unless --save_only_model, training state."""
    state = (
        0
        if trainer.args.save_only_model
        else _num_trained(trainer) * (_MASTER_BYTES + optimizer_state_bytes(trainer.args))
    )
    return ModelForm.of(trainer).bytes(trainer) + int(state)


def _num_trained(trainer: SavedRun) -> int:
    return int(trainer.engine.num_trained_parameters)
