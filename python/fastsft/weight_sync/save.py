"""fsdp_save_state_dict, and the queue of an engine's saves, in which at most one save runs and one waits."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.checkpoint.external.wrapped import is_fsdp1
from fastsft.ranks.exchange import StoreExchange, skip
from fastsft.weight_sync.agreement import TransferAgreement, ranks_of
from fastsft.weight_sync.engine import EngineState, exclusive, state_source
from fastsft.weight_sync.files import huggingface_files
from fastsft.weight_sync.formats import save_format
from fastsft.weight_sync.interfaces import (
    Coordinator,
    Engine,
    Logger,
    ReplacedError,
    raise_once,
    whole_number,
)
from fastsft.weight_sync.plan import parameter_dtype
from fastsft.weight_sync.save_job import KINDS, SaveJob, tell_failure
from fastsft.weight_sync.source import WeightSource
from fastsft.weight_sync.tensor_stream import Staging

if TYPE_CHECKING:
    import torch


class SaveRun:
    """A save job for a coordinator, which either calls it once on a thread or abandons it.

    `done` gets the outcome. after: the end of the earlier save. Rank 0 waits for it, and may replace this job
    until then. Other ranks wait for rank 0's decision.
    """

    def __init__(self, job: SaveJob, deadline_s: float, after: Future[None] | None) -> None:
        self.done: Future[None] = Future()
        self._job, self._deadline_s, self._after = job, deadline_s, after
        self._lock, self._began = threading.Lock(), False

    def __call__(self) -> None:
        if self._job.leads and self._after is not None:
            wait_for([self._after, self.done], self._deadline_s, FIRST_COMPLETED)
        with self._lock:
            if self.done.done():
                self.done.result()  # raises an error, because the job was replaced or abandoned
            self._began = True
        try:
            self._job.run()
        except BaseException as error:
            self.done.set_exception(error)
            raise
        self.done.set_result(None)

    def abandon(self, error: BaseException) -> None:
        """End the job with `error`, unless it has begun. A later call raises `error`."""
        with self._lock:
            if self._began or self.done.done():
                return
            self.done.set_exception(error)
        self._job.abandon(f"{type(error).__name__}: {error}")

    def replace(self, step: int) -> bool:
        """Replace the job by a save for `step`, unless it has begun. Return True if it was replaced.

        Rank 0 decides. Other ranks wait here for the decision, so that all ranks return the same.
        """
        if not self._job.leads:
            return self._job.was_replaced(self._deadline_s)
        with self._lock:
            if not self._began and not self.done.done():
                self.done.set_exception(self._job.replace(step))
        return isinstance(self.done.exception(0) if self.done.done() else None, ReplacedError)


@dataclass
class Slot:
    """Host buffers, and the save that reads them.

    name: the save's name for the coordinator.
    """

    name: str
    staging: Staging = field(default_factory=Staging)
    run: SaveRun | None = None

    def busy(self) -> bool:
        return self.run is not None and not self.run.done.done()

    def finish(self, deadline_s: float) -> BaseException | None:
        """Wait for the save in this slot, and return its error, if any.

        If the save does not end in time, it keeps its buffers, and the slot gets new buffers for later saves.
        """
        try:
            failure = None if self.run is None else self.run.done.exception(deadline_s)
        except TimeoutError:
            self.run, self.staging = None, Staging()
            return RuntimeError(
                f"the save before this one has not ended for {deadline_s:g} seconds: its thread never ran, "
                "or its disk is stuck"
            )
        self.run = None  # not earlier, because an interrupted wait leaves a save that still reads its buffers
        return None if isinstance(failure, ReplacedError) else failure


class SaveQueue:
    """The saves of an engine: one that runs, and one that may wait behind it.

    Only fsdp_save_state_dict(replace_pending=True) lets a save wait. Each save has a slot with its own host
    buffers.
    """

    def __init__(self) -> None:
        # The older save's slot comes first.
        self._slots = [Slot("model_state_dict"), Slot("model_state_dict_next")]

    def free(self, deadline_s: float) -> tuple[Slot, BaseException | None]:
        """Wait for all saves. Return a free slot, and an earlier save's error, if any."""
        failures = [slot.finish(deadline_s) for slot in self._slots]
        return self._slots[0], next((failure for failure in failures if failure is not None), None)

    def replacing(self, step: int, deadline_s: float) -> tuple[Slot, BaseException | None]:
        """Return a slot for a new save, and the slot's earlier error, if any.

        Waits only if one save runs and the save behind it cannot be replaced.
        """
        older, newer = self._slots
        if older.busy() and newer.busy():
            assert newer.run is not None
            reused = newer if newer.run.replace(step) else older
        else:
            reused = newer if older.busy() else older
        failure = reused.finish(deadline_s)
        self._slots = [slot for slot in self._slots if slot is not reused] + [reused]
        return reused, failure

    def other(self, slot: Slot) -> Future[None] | None:
        """Return the future for the other slot's save; None unless that save is in flight."""
        (other,) = (candidate for candidate in self._slots if candidate is not slot)
        return other.run.done if other.run is not None and other.busy() else None


_GATHERING = "gathering a save"


@dataclass(frozen=True)
class SaveTicket:
    """A save in flight on this rank."""

    path: Path
    step: int
    _done: Future[None]

    def done(self) -> bool:
        """Return True if the save has ended, with or without success."""
        return self._done.done()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the step is durable on all ranks.

        RuntimeError if the save has failed. TimeoutError after `timeout` seconds.
        """
        self._done.result(timeout)


def fsdp_save_state_dict(
    engine: Engine,
    local_path: str | None,
    global_step: int,
    coordinator: Coordinator,
    logger: Logger | None,
    *,
    format: str = "verl_pt",
    save_dtype: str | None = None,
    deadline_s: float = 1800.0,
    replace_pending: bool = False,
) -> SaveTicket | None:
    """Save the current sharded weights of `engine.module` to `local_path`. Collective.

    The weights have been copied when this function returns, so training may continue. Every rank writes in
    the background. Rank 0 writes through `coordinator.save_async`, which notifies the monitor when all ranks'
    files are durable.
    local_path: None to save nothing.
    logger: None for this module's logger.
    format: "verl_pt" (DTensor shards for veRL and Trinity), "hf" (one model.safetensors) or "native" (a
    safetensors file for each rank).
    save_dtype: dtype for saved parameters; None keeps each tensor's dtype.
    deadline_s: seconds after which the save fails if a rank is silent, and after which an earlier save is
    given up.
    replace_pending: True to return without waiting for a running save. The new save waits in the background.
    Until it begins, a later call may replace it, and its ticket then raises ReplacedError. This needs host
    memory for a second copy, and fastsft's coordinator.

    If the copy needs a gather (FSDP1, fastsft's engine, DTensors whose rows are not sharded over all ranks),
    the ranks first agree that all can begin, or all raise the error. A failed save's error is raised by
    `SaveTicket.wait`, by `coordinator.wait_all`, or at the end of the next call, after the new save has
    begun. Contract: docs/spec/weight_sync.md, sections 1.1 and 4.2.
    """
    if local_path is None:
        skip("save")
        skip(_GATHERING)
        return None
    rank, world_size = ranks_of(engine)
    # Made before any work that may fail on a single rank, so that failures are reported, and all ranks count
    # the same saves.
    exchange = StoreExchange("save", KINDS, rank, world_size, deadline_s)
    try:
        with TransferAgreement(engine, _GATHERING, f"saving step {global_step}", deadline_s) as opening:
            step = whole_number("global_step", global_step)
            writer, dtype = save_format(format), parameter_dtype(save_dtype)
            _check_coordinator(coordinator, rank)
            directory = _made(local_path)
            with exclusive(engine, deadline_s) as state:
                queue = _queue(state, coordinator, replace_pending)
                slot, before = (
                    queue.replacing(step, deadline_s) if replace_pending else queue.free(deadline_s)
                )
                source = state_source(engine, state)
                with source.held():
                    source.refresh()
                    if source.gathers():  # without agreement, an absent rank would block the gather
                        opening.agree({"step": step, "format": format})
                    source.take_changes()
                    snapshot, error = slot.staging.take(source, dtype, step)
                files = _small_files(engine, source, dtype)
                job = SaveJob(directory, snapshot, writer, exchange, error, files, _fsdp_version(engine))
                run = slot.run = SaveRun(job, deadline_s, queue.other(slot))
    except BaseException as failure:
        tell_failure(exchange, rank, str(failure))
        raise
    try:
        _dispatch(run, slot.name, coordinator, rank, step)
    finally:
        (logger or getLogger(__name__)).info("[FSDP] saving the weights: path=%s, step=%s", directory, step)
    if before is not None:
        raise_once(before)
    return SaveTicket(directory, step, run.done)


def _check_coordinator(coordinator: object, rank: int) -> None:
    """Raise ValueError on rank 0 if there is no coordinator; other ranks need none."""
    if rank == 0 and not hasattr(coordinator, "save_async"):
        raise ValueError(
            "fsdp_save_state_dict: coordinator: expected a CheckpointCoordinator, or another object with "
            f"save_async, got {type(coordinator).__name__}; make CheckpointCoordinator() once for all saves"
        )


def _made(local_path: str) -> Path:
    if not str(local_path):
        raise ValueError("local_path: expected a directory, or None to save nothing; got an empty path")
    if not isinstance(local_path, str | os.PathLike):
        raise TypeError(f"local_path: expected the path of a directory, got {local_path!r}")
    directory = Path(local_path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (NotADirectoryError, FileExistsError) as error:
        way = "choose another, which is no file and below none"
        raise type(error)(error.errno, f"local_path: {error.strerror}; {way}", str(directory)) from None
    return directory


def _queue(state: EngineState, coordinator: Coordinator, replace_pending: bool) -> SaveQueue:
    if replace_pending and not hasattr(coordinator, "attach"):
        raise ValueError(
            "replace_pending: expected fastsft's CheckpointCoordinator, which waits for the save that waits; "
            f"got {type(coordinator).__name__}"
        )
    if state.saves is None:
        state.saves = SaveQueue()
    queue: SaveQueue = state.saves
    return queue


def _small_files(engine: Engine, source: WeightSource, dtype: torch.dtype | None) -> dict[str, bytes]:
    if source.rank != 0:
        return {}
    return huggingface_files(engine, source.config, source.model_texts(dtype))


def _dispatch(run: SaveRun, name: str, coordinator: Coordinator, rank: int, step: int) -> None:
    if rank == 0:
        try:
            coordinator.save_async(name, run, step, is_state_dict=True)
        except BaseException as error:
            if hasattr(coordinator, "attach"):  # fastsft's own coordinator has begun or abandoned the run
                raise
            run.abandon(error)
            raise_once(error)
    elif hasattr(coordinator, "attach"):
        coordinator.attach(name, run)
    else:  # Trinity's coordinator exists only on rank 0
        threading.Thread(target=_quietly, args=(run,), name=f"save-{name}").start()


def _quietly(run: SaveRun) -> None:

    with contextlib.suppress(Exception):  # the ticket keeps the error, and the next save raises it
        run()


def _fsdp_version(engine: Engine) -> int:
    return 1 if not hasattr(engine, "native_engine") and is_fsdp1(engine.module) else 2
