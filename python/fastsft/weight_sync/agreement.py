"""Makes the trainer ranks agree on a transfer, through their store: all ranks succeed, or all raise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from fastsft.ranks.exchange import Message, StoreExchange
from fastsft.weight_sync.interfaces import Engine
from fastsft.weight_sync.plan import SyncPlan

if TYPE_CHECKING:
    from fastsft.weight_sync.tensor_stream import TensorStream

_KINDS = {
    "facts": "agreeing on the call", "hash": "agreeing on the plan", "plan": "comparing plans",
    "outcome": "ending together",
}  # fmt: skip


class TransferAgreement:
    """A context around all work by a rank for a transfer, from `agree` to `settle`. Collective.

    occasion: the calling function's name, the same on every rank. what: phrase that begins error
    messages.
    deadline_s: seconds to wait for absent ranks, and for the store.
    """

    def __init__(self, engine: Engine, occasion: str, what: str, deadline_s: float) -> None:
        self._rank, self._world_size = ranks_of(engine)
        self._what = what
        self._expected = ["facts", "hash", "outcome"]  # kinds of posts for which the other ranks still wait
        self._posts = StoreExchange(occasion, _KINDS, self._rank, self._world_size, deadline_s)

    def __enter__(self) -> TransferAgreement:
        return self

    def agree(self, facts: Mapping[str, object], **own: object) -> list[Message]:
        """Compare `facts` between ranks. Return all ranks' posts, by rank, with the values in `own`.

        Called before the first collective. If facts differ, every rank raises ValueError, with both values.
        RuntimeError or ValueError if a rank failed before this call, or does not make it.
        """
        if self._world_size == 1:
            return [own]
        posts = self._exchange("facts", {"facts": dict(facts), **own})
        self._check_facts(posts)
        return posts

    def agree_on_plan(self, plan: SyncPlan) -> None:
        """Raise ValueError on every rank if plans differ.

        The error names the rank and the first difference.
        """
        if self._world_size == 1:
            return
        hashes = [post["hash"] for post in self._exchange("hash", {"hash": plan.hash})]
        other = next((rank for rank, hash_ in enumerate(hashes) if hash_ != hashes[0]), None)
        if other is not None:
            self._expected = ["plan"]
            posts = self._exchange("plan", {"plan": plan.to_json() if self._rank in (0, other) else None})
            first, second = (SyncPlan.from_json(posts[rank]["plan"]) for rank in (0, other))
            raise ValueError(f"{self._what}: {other_model(first, second, other)}")

    def carry_out(self, what: str, send: Callable[[], None], stream: TensorStream) -> None:
        """Call `send`, drain `stream`, and end the transfer on all ranks, as `settle` does.

        The work may take any time: other ranks wait while this rank's process lives. `stream` is drained
        after an error, too, because other ranks wait in its gathers.
        """
        error: BaseException | None = None
        with self._posts.alive():
            for part in (send, stream.drain):
                try:
                    part()
                except Exception as failure:
                    error = error or failure
        try:
            self.settle(what, error)
        finally:
            error = None  # breaks a reference cycle that would keep the group alive

    def settle(self, what: str, error: BaseException | None) -> None:
        """End the transfer on all ranks: all return, or all raise the first failed rank's error.

        what: phrase that begins error messages. error: this rank's error, which becomes the cause; None
        after success. Waits for all ranks.
        """
        self._what = what
        outcome = {} if error is None else {"failed": _failure(error)}
        if self._world_size > 1:
            self._exchange("outcome", outcome, error)
        else:
            self._check_failures([outcome], error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with contextlib.suppress(RuntimeError):  # the store is gone, and the present error is more useful
                for expected in self._expected:
                    self._posts.post(expected, failed=_failure(error))
        self._posts.leave()

    def _exchange(self, kind: str, content: Message, own: BaseException | None = None) -> list[Message]:
        """Post `content`, and return all ranks' posts. Raise an error if any rank failed.

        own: this rank's error.
        """
        try:
            self._posts.post(kind, **content)
            collect = self._posts.collect_patiently if kind == "outcome" else self._posts.collect_all
            posts = collect(kind)
        except RuntimeError as error:
            # The message includes this rank's own error, because late ranks may not have read its post.
            before = "" if own is None else f"; before that, rank {self._rank} failed: {own}"
            raise RuntimeError(f"{self._what}: {error}{before}") from (own or error)
        self._expected = self._expected[1:]
        self._check_failures(posts, own)
        return posts

    def _check_failures(self, posts: list[Message], own: BaseException | None = None) -> None:
        for rank, post in enumerate(posts):
            if "failed" in post:
                is_value, why = post["failed"]
                kind = ValueError if is_value else RuntimeError
                raise kind(f"{self._what}: rank {rank} failed: {why}") from own

    def _check_facts(self, posts: list[Message]) -> None:
        for rank, post in enumerate(posts):
            for name, value in posts[0]["facts"].items():
                other = post["facts"].get(name)
                if other != value:
                    raise ValueError(
                        f"{self._what}: {name}: rank 0 has {value}, rank {rank} {other}; all ranks make the "
                        "same calls with the same arguments"
                    )


def _failure(error: BaseException) -> tuple[bool, str]:
    return isinstance(error, ValueError), f"{type(error).__name__}: {error}"


def check_grows(what: str, version: int, before: int) -> None:
    """Raise ValueError, the same on every rank, unless `version` is above `before`."""
    if version <= before:
        raise ValueError(f"{what}: version {version} is not newer than {before}, which receivers have")


def other_model(first: SyncPlan, second: SyncPlan, rank: int) -> str:
    """Return a message about the first difference between two plans.

    first: rank 0's plan. second: the plan on `rank`.
    """
    difference = first.difference(second, "rank 0's plan", f"rank {rank}'s plan")
    return f"the model of rank {rank} is not that of rank 0: {difference}; build the same model on every rank"


def ranks_of(engine: Engine) -> tuple[int, int]:
    """Return the trainer's (rank, world size), also before its engine is built."""
    import torch.distributed as dist

    joined = dist.is_available() and dist.is_initialized()
    place = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
    if hasattr(type(engine), "native_engine"):
        trainer = getattr(engine, "trainer", None)
        native = getattr(getattr(trainer, "model", None), "engine", None)
        place = place if native is None else (int(native.rank), int(native.world_size))
    return place
