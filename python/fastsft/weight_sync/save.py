"""fsdp_save_state_dict: sharded weights to disk, written by all ranks while training goes on."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.weight_sync.engine_state import EngineState, exclusive
from fastsft.weight_sync.errors import raise_once
from fastsft.weight_sync.exchange import Verdicts, skip
from fastsft.weight_sync.formats import save_format
from fastsft.weight_sync.huggingface_files import huggingface_files
from fastsft.weight_sync.save_job import KINDS, SaveJob, tell_failure
from fastsft.weight_sync.save_queue import SaveQueue, SaveRun
from fastsft.weight_sync.sources import WeightSource, state_source
from fastsft.weight_sync.transfer_agreement import Opening, ranks_of
from fastsft.weight_sync.validation import whole_number

if TYPE_CHECKING:
    import torch

_GATHERING = "gathering a save"


@dataclass(frozen=True)
class SaveTicket:
    """A save under way on this rank."""

    path: Path
    step: int
    _done: Future[None]

    def done(self) -> bool:
        """True if it ended, well or not."""
        return self._done.done()

    def wait(self, timeout: float | None = None) -> None:
        """Until the step is durable on all ranks. RuntimeError when it failed; TimeoutError after `timeout`
        seconds."""
        self._done.result(timeout)


def fsdp_save_state_dict(
    engine: Any,
    local_path: str | None,
    global_step: int,
    coordinator: Any,
    logger: Any,
    *,
    format: str = "verl_pt",
    save_dtype: str | None = None,
    deadline_s: float = 1800.0,
    replace_pending: bool = False,
) -> SaveTicket | None:
    """Save the sharded weights of `engine.module`, frozen as they are now; collective.

    On return the weights are copied, so training may go on; every rank writes in the background, rank 0
    through `coordinator.save_async`, which tells the monitor once all ranks are durable. No path: nothing.

    format: "verl_pt" (DTensor shards for veRL and Trinity), "hf" (one model.safetensors) or "native"
    (a safetensors file a rank). save_dtype: of parameters; None keeps each tensor's own. deadline_s: seconds
    after which a silent rank fails the save, and an earlier save that does not end is given up. Where copying
    gathers (FSDP1, fastsft's engine, DTensors that are not cut into rows over all ranks) ranks meet first,
    and all raise what keeps one of them from beginning. A failed save is raised by `SaveTicket.wait`, by
    `coordinator.wait_all`, or at the end of the next call, whose own save is under way nevertheless.
    replace_pending: for saves of which only the newest matters: while a save is being written the call
    returns, and its own save waits for its turn; the next call replaces one that has not begun,
    whose ticket raises that. Costs host memory for a second copy, and needs fastsft's coordinator.
    Contract: docs/spec/weight_sync.md, sections 1.1 and 4.2.
    """
    if local_path is None:
        skip("save")
        skip(_GATHERING)
        return None
    rank, world_size = ranks_of(engine)
    # Before anything that can fail on one rank alone: the others must hear of it, and count alike.
    verdicts = Verdicts("save", KINDS, rank, world_size, deadline_s)
    try:
        with Opening(engine, _GATHERING, f"saving step {global_step}", deadline_s) as opening:
            step = whole_number("global_step", global_step)
            writer, dtype = save_format(format), parameter_dtype(save_dtype)
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
                    snapshot, error = slot.staging.take(source, dtype, step)
                files = _small_files(engine, source)
                job = SaveJob(directory, snapshot, writer, verdicts, error, files, _fsdp_version(engine))
                run = slot.run = SaveRun(job, deadline_s, queue.other(slot))
    except BaseException as failure:
        tell_failure(verdicts, rank, str(failure))
        raise
    try:
        _dispatch(run, slot.name, coordinator, rank, step)
    finally:
        logger.info("[FSDP] saving the weights: path=%s, step=%s", directory, step)
    if before is not None:
        raise_once(before)
    return SaveTicket(directory, step, run.done)


def _made(local_path: str) -> Path:
    if not str(local_path):
        raise ValueError("local_path: expected a directory, or None to save nothing; got an empty path")
    directory = Path(local_path)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _queue(state: EngineState, coordinator: Any, replace_pending: bool) -> SaveQueue:
    if replace_pending and not hasattr(coordinator, "attach"):
        raise ValueError(
            "replace_pending: expected fastsft's CheckpointCoordinator, which waits for the save that waits; "
            f"got {type(coordinator).__name__}"
        )
    if state.saves is None:
        state.saves = SaveQueue()
    queue: SaveQueue = state.saves
    return queue


def _small_files(engine: Any, source: WeightSource) -> dict[str, bytes]:
    return huggingface_files(engine, source.config) if source.rank == 0 else {}


def _dispatch(run: SaveRun, name: str, coordinator: Any, rank: int, step: int) -> None:
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


def _quietly(run: Any) -> None:
    import contextlib

    with contextlib.suppress(Exception):  # kept in the ticket and raised by the next save
        run()


def parameter_dtype(name: str | None) -> torch.dtype | None:
    """The dtype of `save_dtype`. ValueError for another name."""
    import torch

    if name is None:
        return None
    if name not in ("float32", "bfloat16", "float16"):
        raise ValueError(f"save_dtype: expected float32, bfloat16, float16 or None, got {name!r}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _fsdp_version(engine: Any) -> int:
    from fastsft.weight_sync.sources.modules import is_fsdp1

    return 1 if not hasattr(engine, "native_engine") and is_fsdp1(engine.module) else 2
