"""Broadcasts whole weights to rollout engines: fsdp_sync_weight_nccl sends, and WeightReceiver receives."""

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
from fastsft.weight_sync.tensor_stream import RowShard, ShardAssembler, TensorStream

_WHAT = "the handshake"


def offer(transport: Transport, plan: SyncPlan, header: Message) -> None:
    """Offer a transfer to the receivers. RuntimeError, with the reason, if a receiver refuses."""
    transport.announce({**header, "hash": plan.hash, "generation": transport.generation})
    answers = transport.vote({}, _WHAT)
    if any(answer.get("other_plan") for answer in answers):
        _exchange_plans(transport, plan, None)


def accept(transport: Transport, plan: SyncPlan, check: Callable[[Message], str | None]) -> Message:
    """Answer an offer, and return the sender's header. RuntimeError if this or another receiver refuses.

    check: returns a reason to refuse the header, or None to accept.
    """
    header = transport.announce({})
    why = check(header)
    answer: Message = {"error": why} if why else {"other_plan": header["hash"] != plan.hash}
    answers = transport.vote(answer, _WHAT)
    if any(answer.get("other_plan") for answer in answers):
        _exchange_plans(transport, plan, plan)
    return header


def _exchange_plans(transport: Transport, plan: SyncPlan, own: SyncPlan | None) -> None:
    """Send the sender's plan to all receivers, which answer with the first difference. Always raises.

    own: the receiver's plan; None on the sender.
    """
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
    """Broadcast the whole weights of `engine.module`, and return their version.

    Collective over the trainer ranks.
    model_update_group: a process group or `WeightGroup`, with trainer rank 0 as its rank 0 and the receivers
    as its other ranks; None on other trainer ranks.
    mode: "trinity" (one broadcast per tensor), "vllm_packed", "sglang", "native", or "native_multiroot". In
    the last mode, every trainer rank passes its own group with all receivers.
    save_dtype: dtype for sent parameters; None keeps each tensor's dtype.
    send_buffers: True to send the persistent buffers, too.
    bucket_bytes: bucket, chunk or batch size.
    deadline_s: limit for each single wait in seconds. After the limit, the group ends with a RuntimeError.
    version: must be above earlier versions. None for one more than the newest version that any trainer rank
    or group member knows.
    handshakes: True if ranks first agree on plan and version; must equal the receivers' `handshakes`. None
    means True for a `WeightGroup`. Pass False if such a group has receivers that are other programs.
    checksum: True to compare the buckets' checksums in the native modes.
    announce: called with each SGLang request.

    Names, order, dtypes and shapes are those of `sync_plan`. The tensors are the module's parameters. If
    the engine has `get_per_tensor_param`, and FSDP1 does not wrap its module, they are the tensors that this
    method yields. If a rank fails, all trainer ranks raise its error. Contract: docs/spec/weight_sync.md,
    sections 1.3 and 4.4.
    """
    with (
        TransferAgreement(engine, "broadcast", "sending weights", deadline_s) as opening,
        exclusive(engine, deadline_s) as state,
    ):
        wire = sync_mode(mode)
        bucket_bytes = whole_number("bucket_bytes", bucket_bytes)
        facts = {"mode": mode, "bucket_bytes": bucket_bytes}
        known = max(state.broadcast, state.sent, known_version(model_update_group))
        sent = _agreed_version(opening, state, version, known, facts)
        source = broadcast_source(engine, state)
        source.take_changes()
        plan = source.plan(parameter_dtype(save_dtype), buffers=send_buffers)
        opening.agree_on_plan(plan)
        share = RowShard(plan, source.rank, source.world_size) if wire.every_rank else None
        stream = TensorStream(source, plan, share)
        options = SyncOptions(bucket_bytes, sent, announce, checksum)

        def send() -> None:
            if source.rank != 0 and not wire.every_rank:
                return
            transport = _transport(model_update_group, deadline_s, source)
            with transport.transfer():
                if shakes_hands(wire, handshakes, transport):
                    offer(transport, plan, _header(mode, options, source))
                wire.send(stream, plan if share is None else share.plan, transport, options)
            state.sent = sent
            transport.note_version(sent)

        opening.carry_out(f"sending version {sent}", send, stream)
        state.broadcast = sent
    return sent


def _agreed_version(
    opening: TransferAgreement, state: EngineState, version: int | None, known: int, facts: Message
) -> int:
    """Return `version`; if it is None, a version that is new to all ranks and receivers.

    known: the newest version that this rank knows, even if a rank failed after it was sent.
    """
    if version is not None:
        version = whole_number("version", version)
        check_grows(f"sending version {version}", version, state.broadcast)
    posts = opening.agree({"version": version, **facts}, known=known)
    return version if version is not None else 1 + max(post["known"] for post in posts)


def shakes_hands(mode: Mode, asked: bool | None, transport: Transport) -> bool:
    """Return True if a sync begins with an agreement on plan and version.

    Sender and receivers must get the same result.
    """
    return mode.handshakes or (transport.is_ours if asked is None else asked)


def _header(mode: str, options: SyncOptions, source: BroadcastSource) -> Message:
    """Return the facts that receivers compare with their own settings."""
    header = {"mode": mode, "version": options.version, "bucket_bytes": options.bucket_bytes}
    if sync_mode(mode).every_rank:
        header |= {"root": source.rank, "roots": source.world_size}
    return header


def sync_plan(
    engine: Engine, *, save_dtype: str | None = None, send_buffers: bool = False, deadline_s: float = 600.0
) -> SyncPlan:
    """Return the plan of `fsdp_sync_weight_nccl` with these options, for receivers. Collective.

    deadline_s: seconds that ranks wait for each other. If ranks have different models, every rank raises
    ValueError, with the rank and the first difference.
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
    """Receives syncs as a rank above 0 of `group`.

    group: a process group or a `WeightGroup`; for mode "native_multiroot", a list with all trainer ranks'
    groups, in rank order.
    plan: a `SyncPlan`, or metadata as Trinity's Synchronizer returns them.
    load: called with lists of (name, tensor) as tensors arrive.
    mode, bucket_bytes, handshakes: must equal the sender's. handshakes None means True if each group is a
    `WeightGroup`.
    deadline_s: limit for each single wait in seconds.

    `dirty` is True from a sync's first byte until its end. If a sync fails, it stays True: the loaded
    weights may mix two versions, and must not be used before another sync has succeeded.
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
        """Receive a sync, and return its version.

        Without handshakes, the receiver counts the versions itself.

        RuntimeError if the sync fails or is refused, or if a wait exceeds the deadline.
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
    """Call each function in `works` on its own thread.

    When all have ended, return their results, or raise the first error.
    """
    if len(works) == 1:
        return [works[0]()]
    with ThreadPoolExecutor(len(works), thread_name_prefix="weights-from-root") as threads:
        futures = [threads.submit(work) for work in works]
    return [future.result() for future in futures]
