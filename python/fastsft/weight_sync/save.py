"""fsdp_save_state_dict, and the saves of an engine that have not ended: at most one running, one queued."""

from __future__ import annotations

import contextlib
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
    """A job that a coordinator calls once on a thread, or abandons: either way `done` gets an outcome.

    after: a save that must end first on rank 0, which may replace this job until then. The other ranks wait
    for rank 0's word in any case.
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
                self.done.result()  # raises: it was replaced
            self._began = True
        try:
            self._job.run()
        except BaseException as error:
            self.done.set_exception(error)
            raise
        self.done.set_result(None)

    def abandon(self, error: BaseException) -> None:
        """End the job with `error` unless it has begun; a later call raises `error`."""
        with self._lock:
            if self._began or self.done.done():
                return
            self.done.set_exception(error)
        self._job.abandon(f"{type(error).__name__}: {error}")

    def replace(self, step: int) -> bool:
        """Replace the job by a save of `step`, unless it has begun. True on all ranks or on none.

        Rank 0 decides, and the others hear of it here.
        """
        if not self._job.leads:
            return self._job.was_replaced(self._deadline_s)
        with self._lock:
            if not self._began and not self.done.done():
                self.done.set_exception(self._job.replace(step))
        return isinstance(self.done.exception(0) if self.done.done() else None, ReplacedError)


@dataclass
class Slot:
    """Host buffers, and the save that reads them. name: for the coordinator."""

    name: str
    staging: Staging = field(default_factory=Staging)
    run: SaveRun | None = None

    def busy(self) -> bool:
        return self.run is not None and not self.run.done.done()

    def finish(self, deadline_s: float) -> BaseException | None:
        """Wait for the save, and return its error, if any.

        A save that does not end keeps its buffers, and blocks no later save.
        """
        try:
            failure = None if self.run is None else self.run.done.exception(deadline_s)
        except TimeoutError:
            self.run, self.staging = None, Staging()
            return RuntimeError(
                f"the save before this one has not ended for {deadline_s:g} seconds: its thread never ran, "
                "or its disk is stuck"
            )
        self.run = None  # only now: after an interrupt in the wait the save still reads its buffers
        return None if isinstance(failure, ReplacedError) else failure


class SaveQueue:
    """Two slots; the second is only for saves that do not wait for the first."""

    def __init__(self) -> None:
        self._slots = [Slot("model_state_dict"), Slot("model_state_dict_next")]  # the older one first

    def free(self, deadline_s: float) -> tuple[Slot, BaseException | None]:
        """Wait for all saves. Return a slot, and the error of an earlier save, if any."""
        failures = [slot.finish(deadline_s) for slot in self._slots]
        return self._slots[0], next((failure for failure in failures if failure is not None), None)

    def replacing(self, step: int, deadline_s: float) -> tuple[Slot, BaseException | None]:
        """Return a slot, at once if no save waits or the waiting one is replaced, and an earlier error."""
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
        """Return the end of the other slot's save, if it is under way."""
        (other,) = (candidate for candidate in self._slots if candidate is not slot)
        return other.run.done if other.run is not None and other.busy() else None


_GATHERING = "gathering a save"


@dataclass(frozen=True)
class SaveTicket:
    """A save under way on this rank."""

    path: Path
    step: int
    _done: Future[None]

    def done(self) -> bool:
        """True if the save has ended, with or without success."""
        return self._done.done()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the step is durable on all ranks. RuntimeError if it failed; TimeoutError after
        `timeout` seconds."""
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
    """Save the sharded weights of `engine.module`, frozen as they are now. Collective.

    On return the weights are copied, so training may go on; every rank writes in the background, rank 0
    through `coordinator.save_async`, which tells the monitor once all ranks are durable. Without a path
    nothing is saved.

    format: "verl_pt" (DTensor shards for veRL and Trinity), "hf" (one model.safetensors) or "native"
    (a safetensors file a rank). logger: None for this module's own. save_dtype: dtype of parameters; None
    keeps each tensor's own. deadline_s: seconds after which a silent rank fails the save, and an earlier save
    that does not end is given up. If the copy gathers (FSDP1, fastsft's engine, DTensors that are not cut
    into rows over all ranks), ranks meet first, and all raise the error that keeps a rank from beginning. The
    error of a failed save is raised by `SaveTicket.wait`, by `coordinator.wait_all`, or at the end of the
    next call, whose own save is under way nevertheless.
    replace_pending: only the newest save matters: while a save is being written the call returns, and its own
    save waits for its turn; the next call replaces a save that has not begun, whose ticket raises that. Costs
    host memory for a second copy, and needs fastsft's coordinator.
    Contract: docs/spec/weight_sync.md, sections 1.1 and 4.2.
    """
    if local_path is None:
        skip("save")
        skip(_GATHERING)
        return None
    rank, world_size = ranks_of(engine)
    # Before anything that can fail on one rank alone: the others must hear of it, and count alike.
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
                    if source.gathers():  # a rank that stayed away would leave the others in it
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
    """ValueError unless rank 0 has a coordinator, which the other ranks do not need."""
    if rank == 0 and not hasattr(coordinator, "save_async"):
        raise ValueError(
            "fsdp_save_state_dict: coordinator: expected a CheckpointCoordinator, or another object with "
            f"save_async, got {type(coordinator).__name__}; make CheckpointCoordinator() once for all saves"
        )


def _made(local_path: str) -> Path:
    if not str(local_path):
        raise ValueError("local_path: expected a directory, or None to save nothing; got an empty path")
    directory = Path(local_path)
    directory.mkdir(parents=True, exist_ok=True)
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
            if hasattr(coordinator, "attach"):  # ours has begun it, or abandoned it
                raise
            run.abandon(error)
            raise_once(error)
    elif hasattr(coordinator, "attach"):
        coordinator.attach(name, run)
    else:  # Trinity's: other ranks never talk to it
        threading.Thread(target=_quietly, args=(run,), name=f"save-{name}").start()


def _quietly(run: SaveRun) -> None:

    with contextlib.suppress(Exception):  # kept in the ticket and raised by the next save
        run()


def _fsdp_version(engine: Engine) -> int:
    return 1 if not hasattr(engine, "native_engine") and is_fsdp1(engine.module) else 2
