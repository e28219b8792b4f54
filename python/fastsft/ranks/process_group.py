"""The process groups of the run, and small collectives on the host."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import fastsft
from fastsft.ranks.plain_values import Unsendable, from_bytes, to_bytes
from fastsft.ranks.rendezvous import RollCall
from fastsft.ranks.store import (
    forget_own_store,
    is_one_machine,
    meeting_store,
    open_own_store,
    serves_store,
    visitors_store,
)
from fastsft.runtime.launch import Launch, check_network, interface_towards, launch, meeting_place

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch._C._distributed_c10d import Store

T = TypeVar("T")


@dataclass(frozen=True)
class Groups:
    """Names of the engine's process groups; "" for a group that is not needed.

    gather and reduce: groups of all ranks. They are separate so that an all-gather never waits for a
    reduction. node_gather and node_reduce: groups of the ranks on this rank's node, if there are several
    nodes. across: the group of the ranks that have this rank's local rank, one on each node. context: the
    group of the ranks that share the tokens of a micro-batch, if several do.
    """

    gather: str = ""
    reduce: str = ""
    node_gather: str = ""
    node_reduce: str = ""
    across: str = ""
    context: str = ""


_groups: dict[tuple[int, int], Groups] = {}


def join(
    timeout_seconds: float = 1800, device: str = "cpu", node_size: int = 0, context_size: int = 1
) -> Groups:
    """Meet the other ranks and make the groups; later calls return the same groups. Collective.

    timeout_seconds: time limit of a collective. device: the device type of the groups' tensors; "cpu" uses
    gloo, and other devices use NCCL. Python objects always travel through gloo. node_size: number of
    consecutive ranks that form a node, a divisor of the world size; 0: all ranks. context_size: number of
    consecutive ranks that share the tokens of a micro-batch, also a divisor of the world size. A run with a
    single rank opens no socket. RuntimeError if the ranks do not meet.
    """
    sizes = (node_size, context_size)
    if sizes not in _groups:
        with host_collective("making of the groups"):
            _groups[sizes] = _make_groups(timeout_seconds, device, *sizes)
    return _groups[sizes]


def meet(timeout_seconds: float = 1800) -> None:
    """Meet the other ranks and make the default process group (gloo); later calls do nothing. Collective.

    `join` calls this function, too. Ranks call it earlier to compare their arguments before `join` uses them.
    Missing ranks are named on stderr (rendezvous.py). RuntimeError if the ranks do not meet in time.
    ValueError if environment variables are inconsistent, or if ranks differ in version or world size.
    """
    place = launch()
    if place.world_size == 1:
        return
    import torch.distributed as dist

    if dist.is_initialized():
        return
    from fastsft import _C

    _C.set_place(place.rank, place.world_size)
    _prepare_environment(place)
    with host_collective("meeting of the ranks"):
        store = _roll_call(place, timeout_seconds)
        timeout = timedelta(seconds=timeout_seconds)
        _C.require_threads(_THREADS_OF_A_GROUP, _GROUPS)
        dist.init_process_group(
            "gloo", rank=place.rank, world_size=place.world_size, timeout=timeout, store=store
        )
        open_own_store()
    atexit.register(_leave_at_exit)


def _leave_at_exit() -> None:
    """Close the groups at exit, unless an uncaught exception ends this process.

    A gloo thread that releases a tensor after Python has ended would abort the process. After an uncaught
    exception the groups stay open, because closing them could wait for ranks that still run.
    """
    if not hasattr(sys, "last_type"):
        leave()


_meetings = itertools.count()
_THREADS_OF_A_GROUP, _GROUPS = 4, "a process group"  # torch 2.11 calls std::terminate if a thread is denied
_REFUSALS_S = 5.0  # a short wait is enough, since a launcher's store listens before ranks start


def _roll_call(place: Launch, timeout_seconds: float) -> Store:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    here = is_one_machine(place.local_world_size, place.world_size)
    connect = functools.partial(
        meeting_store, place.rank, place.world_size, timedelta(seconds=timeout_seconds), here=here
    )
    of_launcher = serves_store(os.environ)
    call = RollCall(
        connect, place.rank, place.world_size,
        where=("127.0.0.1" if here else host, port),
        version=fastsft.__version__,
        serves=place.rank == 0 and not of_launcher,
        refusals_s=_REFUSALS_S if of_launcher else None,
        round=next(_meetings),
        knock=functools.partial(visitors_store, "127.0.0.1" if here else host, port, place.world_size),
        restarts="TORCHELASTIC_RUN_ID" in os.environ,
    )  # fmt: skip
    return call.hold(timeout_seconds)


def _options_of(backend: str, timeout: timedelta) -> dist.ProcessGroupNCCL.Options | None:
    """Return NCCL's options; None for gloo.

    On a high-priority stream, NCCL's kernels start before the thread blocks of a GEMM that are still waiting.
    The timeout is set because torch warns on every rank if the options and the group have different timeouts.
    """
    if backend != "nccl":
        return None
    import torch.distributed as dist

    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = timeout
    return options


def _make_groups(timeout_seconds: float, device: str, node_size: int, context_size: int) -> Groups:
    place = launch()
    if place.world_size == 1:
        return Groups()
    import torch.distributed as dist

    from fastsft import _C

    meet(timeout_seconds)
    timeout = timedelta(seconds=timeout_seconds)
    backend = "gloo" if device == "cpu" else "nccl"
    # NCCL's watchdog would end the process without fastsft's message, so it gets more time than the engine's
    # watchdog.
    slack = timedelta(seconds=0 if backend == "gloo" else 20)

    def group(ranks: list[int]) -> str:
        _C.require_threads(_THREADS_OF_A_GROUP, _GROUPS)
        made = dist.new_group(
            ranks,
            backend=backend,
            timeout=timeout + slack,
            pg_options=_options_of(backend, timeout + slack),
        )
        return str(getattr(made, "group_name", ""))  # a group without this rank has no name

    def own_group(kind: list[list[int]]) -> str:
        """Make all groups of a kind, as torch requires of every rank; return the name of this rank's own."""
        made = [(place.rank in ranks, group(ranks)) for ranks in kind]
        return next(name for ours, name in made if ours)

    def consecutive(size: int) -> list[list[int]]:
        return [everyone[first : first + size] for first in everyone[::size]]

    everyone = list(range(place.world_size))
    names = {"gather": group(everyone), "reduce": group(everyone)}
    if node_size not in (0, place.world_size):
        nodes = consecutive(node_size)
        names |= {"node_gather": own_group(nodes), "node_reduce": own_group(nodes)}
        names["across"] = own_group([everyone[local::node_size] for local in range(node_size)])
    if context_size > 1:
        names["context"] = own_group(consecutive(context_size))
    return Groups(**names)


def _prepare_environment(place: Launch) -> None:
    """Set MASTER_ADDR and MASTER_PORT, and gloo's network interface unless the user has set it.

    The interface is loopback if all ranks share a machine; otherwise it is the interface that routes to
    MASTER_ADDR. By default gloo would use the host name's address, which other machines often cannot reach.
    """
    check_network()
    # The main thread reports a failed device. Without this setting, NCCL's thread would abort the process
    # before that report.
    os.environ.setdefault("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0")
    host, port = meeting_place(os.environ)
    os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
    if place.local_world_size == place.world_size:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    elif (interface := interface_towards(os.environ["MASTER_ADDR"])) not in (None, "lo"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", str(interface))


def leave() -> None:
    """Close the groups; called after the last collective."""
    _groups.clear()
    forget_own_store()
    if launch().world_size > 1:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


def stay() -> None:
    """Keep the groups open at exit: undo the registration of `leave`."""
    atexit.unregister(_leave_at_exit)


def barrier() -> None:
    """Wait until every rank has made this call. Collective."""
    if launch().world_size > 1:
        import torch.distributed as dist

        with host_collective("barrier"):
            dist.barrier()


def gather_objects(value: T, place: Launch | None = None) -> list[T]:
    """Return the values of all ranks, in rank order. Collective.

    place: rank and world size of this process; None: as in the environment. Values are encoded as plain data
    (plain_values.py), so that no peer can make a rank run code. TypeError on all ranks if a rank's value
    cannot be encoded.
    """
    place = launch() if place is None else place
    if place.world_size == 1:
        return [value]
    try:
        mine = to_bytes(value)
    except (TypeError, ValueError, RuntimeError) as error:  # raised below: other ranks wait in the exchange
        mine = to_bytes(Unsendable(str(error)))
    with host_collective("exchange of objects"):
        values = [from_bytes(data) for data in _gather_bytes(mine, place.world_size)]
    for rank, received in enumerate(values):
        if isinstance(received, Unsendable):
            raise TypeError(f"rank {rank}: {received.reason}")
    return values


def _gather_bytes(mine: bytes, world_size: int) -> list[bytes]:
    import torch
    import torch.distributed as dist

    sizes = torch.zeros(world_size, dtype=torch.int64)
    dist.all_gather_into_tensor(sizes, torch.tensor([len(mine)]))
    longest = int(sizes.max())
    padded = torch.frombuffer(bytearray(mine.ljust(longest, b"\0")), dtype=torch.uint8)
    everyone = torch.empty(world_size * longest, dtype=torch.uint8)
    dist.all_gather_into_tensor(everyone, padded)
    parts = everyone.view(world_size, longest).numpy()
    return [parts[rank, : int(size)].tobytes() for rank, size in enumerate(sizes)]


@contextlib.contextmanager
def host_collective(what: str) -> Iterator[None]:
    """Convert a RuntimeError in the block into a CollectiveError that names rank, step, phase and `what`."""
    try:
        yield
    except RuntimeError as error:
        from fastsft import _C

        if isinstance(error, _C.ThreadDeniedError):  # its message is complete; only this rank is affected
            raise
        reason = str(error).splitlines()[0]
        raise _C.CollectiveError(
            f"{_C.rank_status()}: {what} failed: {reason}; another rank died or is stuck: look for the "
            "first message of another rank, then start the same command again: it resumes from the newest "
            "checkpoint"
        ) from error
