"""fsdp_sync_weight_nccl sends whole weights to rollout engines; WeightReceiver is the other end."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from fastsft.ranks.exchange import Message, seconds
from fastsft.weight_sync.agreement import TransferAgreement, check_grows
from fastsft.weight_sync.engine import EngineState, broadcast_source, exclusive
from fastsft.weight_sync.groups import AgreedError, Transport, known_version
from fastsft.weight_sync.interfaces import Engine, whole_number
from fastsft.weight_sync.modes import Mode, SyncOptions, sync_mode
from fastsft.weight_sync.plan import NamedTensor, SyncPlan, parameter_dtype
from fastsft.weight_sync.source import BroadcastSource, Load
from fastsft.weight_sync.tensor_stream import RowShard, ShardAssembler, TensorStream, drained

_WHAT = "the handshake"


def offer(transport: Transport, plan: SyncPlan, header: Message) -> None:
    """Offer a transfer to the receivers. RuntimeError if one refuses, with its words."""
    transport.announce({**header, "hash": plan.hash, "generation": transport.generation})
    answers = transport.vote({}, _WHAT)
    if any(answer.get("other_plan") for answer in answers):
        _exchange_plans(transport, plan, None)


def accept(transport: Transport, plan: SyncPlan, check: Callable[[Message], str | None]) -> Message:
    """Accept a transfer; return the sender's header. RuntimeError if this or another receiver refuses.

    check: returns the reason to refuse a header, or None.
    """
    header = transport.announce({})
    why = check(header)
    answer: Message = {"error": why} if why else {"other_plan": header["hash"] != plan.hash}
    answers = transport.vote(answer, _WHAT)
    if any(answer.get("other_plan") for answer in answers):
        _exchange_plans(transport, plan, plan)
    return header


def _exchange_plans(transport: Transport, plan: SyncPlan, own: SyncPlan | None) -> None:
    """Send the sender's plan to all, so that receivers with another plan name a difference; always raises."""
    text = plan.to_json().encode() if own is None else b""
    length = int(transport.announce({"bytes": len(text)})["bytes"])
    data = (
        torch.frombuffer(bytearray(text), dtype=torch.uint8).clone()
        if text
        else torch.empty(length, dtype=torch.uint8)
    )
    data = data.to(transport.device)
    transport.wait(transport.broadcast(data), "the broadcast of the plan")
    answer: Message = {}
    if own is not None:
        sent = SyncPlan.from_json(bytes(data.cpu().numpy()).decode())
        difference = own.difference(sent, "the receiver's plan", "the sender's plan")
        answer = {"error": difference} if difference else {}
    transport.vote(answer, _WHAT)
    raise AgreedError(f"{_WHAT}: plans differ")


DEFAULT_BUCKET_BYTES = 1 << 28
T = TypeVar("T")


def fsdp_sync_weight_nccl(
    engine: Engine,
    model_update_group: object,
    *,
    mode: str = "trinity",
    save_dtype: str | None = None,
    send_buffers: bool = False,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    deadline_s: float = 600.0,
    version: int | None = None,
    handshakes: bool | None = None,
    checksum: bool = True,
    announce: Callable[[Message], object] | None = None,
) -> int:
    """Broadcast the whole weights of `engine.module`. Collective over the trainer ranks. Returns the version.

    Only trainer rank 0 belongs to `model_update_group` (a process group, or a `WeightGroup`), as its rank 0;
    elsewhere it may be None. mode: "trinity" (a broadcast a tensor), "vllm_packed", "sglang", "native", or
    "native_multiroot", for which every trainer rank gives a group of its own with all receivers.
    Names, order, dtypes and shapes are those of `sync_plan`: parameters, with `send_buffers` also persistent
    buffers; if an engine has `get_per_tensor_param`, and FSDP1 does not wrap it, the tensors that it yields.

    deadline_s: limit of every single wait, past which a RuntimeError ends the group. version: must grow;
    None: one more than the last that a trainer rank or a member of the group knows. handshakes: begin with an
    agreement on plan and version, as the receivers' `handshakes` say; None: if the group is a `WeightGroup`,
    which both ends made; False for other programs' receivers in such a group. If a rank fails, all trainer
    ranks raise its reason.
    Contract: docs/spec/weight_sync.md, sections 1.3 and 4.4.
    """
    with (
        TransferAgreement(engine, "broadcast", "sending weights", deadline_s) as opening,
        exclusive(engine, deadline_s) as state,
    ):
        wire = sync_mode(mode)
        bucket_bytes = whole_number("bucket_bytes", bucket_bytes)
        facts = {"mode": mode, "bucket_bytes": bucket_bytes}
        known = max(state.broadcast, state.sent, known_version(model_update_group))
        version = _agreed_version(opening, state, version, known, facts)
        source = broadcast_source(engine, state)
        source.take_changes()
        plan = source.plan(parameter_dtype(save_dtype), buffers=send_buffers)
        opening.agree_on_plan(plan)
        share = RowShard(plan, source.rank, source.world_size) if wire.every_rank else None
        stream = TensorStream(source, plan, share)
        error: BaseException | None = None
        with opening.transfer():
            try:
                if source.rank == 0 or wire.every_rank:
                    options = SyncOptions(bucket_bytes, version, announce, checksum)
                    transport = _transport(model_update_group, deadline_s, source)
                    with transport.transfer():
                        if shakes_hands(wire, handshakes, transport):
                            offer(transport, plan, _header(mode, options, source))
                        wire.send(stream, plan if share is None else share.plan, transport, options)
                    state.sent = version
                    transport.note_version(version)
            except Exception as failure:
                error = failure
            error = drained(stream, error)
        try:
            opening.settle(f"sending version {version}", error)
        finally:
            error = None  # holds this frame: a cycle would keep the group until a full collection
        state.broadcast = version
    return version


def _agreed_version(
    opening: TransferAgreement, state: EngineState, version: int | None, known: int, facts: Message
) -> int:
    """Return the given version, or one that is new to all ranks and receivers, also after a late failure.

    known: the newest version that this rank has heard of.
    """
    if version is not None:
        version = whole_number("version", version)
        check_grows(f"sending version {version}", version, state.broadcast)
    posts = opening.agree({"version": version, **facts}, known=known)
    return version if version is not None else 1 + max(post["known"] for post in posts)


def shakes_hands(mode: Mode, asked: bool | None, transport: Transport) -> bool:
    """True if a sync begins with an agreement on plan and version, on both ends alike."""
    return mode.handshakes or (transport.is_ours if asked is None else asked)


def _header(mode: str, options: SyncOptions, source: BroadcastSource) -> Message:
    """Return the facts that receivers compare with their own; with the root only if there are several."""
    header = {"mode": mode, "version": options.version, "bucket_bytes": options.bucket_bytes}
    if sync_mode(mode).every_rank:
        header |= {"root": source.rank, "roots": source.world_size}
    return header


def sync_plan(
    engine: Engine, *, save_dtype: str | None = None, send_buffers: bool = False, deadline_s: float = 600.0
) -> SyncPlan:
    """Return the plan of a `fsdp_sync_weight_nccl` with these options, for receivers. Collective.

    ValueError, on every rank, if ranks have different models, naming the rank and the first difference.
    deadline_s: how long ranks wait for each other.
    """
    with (
        TransferAgreement(engine, "plan", "planning", deadline_s) as opening,
        exclusive(engine, deadline_s) as state,
    ):
        opening.agree({"save_dtype": save_dtype, "send_buffers": send_buffers})
        source = broadcast_source(engine, state)
        source.refresh()
        plan = source.plan(parameter_dtype(save_dtype), buffers=send_buffers)
        opening.agree_on_plan(plan)
        return plan


def _transport(group: object, deadline_s: float, source: BroadcastSource) -> Transport:
    if group is None:
        raise ValueError(f"model_update_group: expected a group on trainer rank {source.rank}, got None")
    transport = Transport(group, deadline_s, source.wire_device(group))
    if transport.rank != 0:
        raise ValueError(
            f"model_update_group: expected trainer rank {source.rank} as its rank 0, got {transport.rank}"
        )
    return transport


class WeightReceiver:
    """Takes part in syncs as a rank above 0 of `group`, a process group or a `WeightGroup`.

    For mode "native_multiroot" `group` is a list: one with each trainer rank, in their order. plan: a
    `SyncPlan`, or metadata as Trinity's Synchronizer gives it. load: called with lists of (name, tensor) as
    they arrive. mode and bucket_bytes: the sender's. handshakes: as the sender's; None: if each group is a
    `WeightGroup`. deadline_s: of every single wait.
    `dirty` is true from the first byte of a sync until its end: the loaded weights may be a mixture of two
    versions, and must not serve before a sync has succeeded.
    """

    def __init__(
        self,
        group: object,
        plan: SyncPlan | Sequence[NamedTensor],
        load: Load,
        *,
        mode: str = "trinity",
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        deadline_s: float = 600.0,
        handshakes: bool | None = None,
        checksum: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        self._mode, self._device = sync_mode(mode), device
        self._deadline_s = seconds("deadline_s", deadline_s)
        if self._mode.every_rank != isinstance(group, (list, tuple)):
            expected = "a list of groups, one a trainer rank" if self._mode.every_rank else "one group"
            raise ValueError(f"group: expected {expected} for mode {mode!r}, got {type(group).__name__}")
        self._groups, self._load = list(group) if isinstance(group, (list, tuple)) else [group], load
        self.plan = plan if isinstance(plan, SyncPlan) else SyncPlan(plan)
        self._handshakes = handshakes
        self._bucket_bytes, self._checksum = whole_number("bucket_bytes", bucket_bytes), checksum
        self.version, self.dirty = 0, False
        self._shares: list[RowShard] = []

    def receive(self) -> int:
        """Take part in one sync. Return the loaded version, counted here if the mode sends none.

        RuntimeError if it failed, was refused, or a wait took longer than the deadline.
        """
        transports = [Transport(group, self._deadline_s, self._device) for group in self._groups]
        versions = {1 + max(self.version, transports[0].version)}
        if shakes_hands(self._mode, self._handshakes, transports[0]):
            versions = set(_together(list(map(self._accepting, itertools.count(), transports))))
        if len(versions) > 1:
            for transport in transports:
                transport.end()
            raise RuntimeError(f"the trainer ranks send versions {sorted(versions)}; expected one")
        (version,) = versions
        self.dirty = True
        options = SyncOptions(self._bucket_bytes, version, checksum=self._checksum)
        if self._mode.every_rank:
            self._receive_shares(transports, options)
        else:
            self._receive_from(transports[0], self.plan, options, self._load)
        self.version, self.dirty = version, False
        for transport in transports:
            transport.note_version(version)
        return version

    def _receive_shares(self, transports: list[Transport], options: SyncOptions) -> None:
        size = len(transports)
        self._shares = self._shares or [RowShard(self.plan, root, size) for root in range(size)]
        joining = ShardAssembler(self.plan, self._load)
        _together([
            functools.partial(self._receive_from, transport, share.plan, options, joining.loader(share))
            for share, transport in zip(self._shares, transports, strict=True)
        ])  # fmt: skip

    def _receive_from(self, transport: Transport, plan: SyncPlan, options: SyncOptions, load: Load) -> None:
        with transport.transfer():
            self._mode.receive(plan, transport, options, load)

    def _accepting(self, root: int, transport: Transport) -> Callable[[], int]:
        def accepted() -> int:
            with transport.transfer():
                header = accept(transport, self.plan, functools.partial(self._refusal, root))
                return int(header["version"])

        return accepted

    def _refusal(self, root: int, header: Message) -> str | None:
        expected: Message = {"mode": self._mode.name, "bucket_bytes": self._bucket_bytes}
        if self._mode.every_rank:
            expected |= {"root": root, "roots": len(self._groups)}
        for key, value in expected.items():
            if header.get(key) != value:
                return f"{key}: expected {value}, the sender has {header.get(key)}"
        if int(header["version"]) <= self.version:
            return (
                f"version {header['version']} is not newer than {self.version}, which this receiver has; "
                "after a resume from an older step make its WeightReceiver again"
            )
        return None


def _together(works: list[Callable[[], T]]) -> list[T]:
    """Run each work on a thread of its own. Return the results, or raise the first failure at the end."""
    if len(works) == 1:
        return [works[0]()]
    with ThreadPoolExecutor(len(works), thread_name_prefix="weights-from-root") as threads:
        futures = [threads.submit(work) for work in works]
    return [future.result() for future in futures]
