"""AllOrNone of the trainer ranks, through their store, around a transfer: all make the same call, and all
succeed or all raise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import TracebackType

from fastsft.ranks.exchange import Message, StoreExchange
from fastsft.weight_sync.interfaces import Engine
from fastsft.weight_sync.plan import SyncPlan

_KINDS = {
    "facts": "agreeing on the call", "hash": "agreeing on the plan", "plan": "comparing plans",
    "outcome": "ending together",
}  # fmt: skip


class TransferAgreement:
    """A `with` block around all work of a rank for a transfer, from `agree` to `settle`. Collective.

    occasion: name of the function, the same on every rank. what: for messages. deadline_s: how long absent
    ranks are waited for, and the store.
    """

    def __init__(self, engine: Engine, occasion: str, what: str, deadline_s: float) -> None:
        self._rank, self._world_size = ranks_of(engine)
        self._what = what
        self._expected = ["facts", "hash", "outcome"]  # posts that the others wait for
        self._posts = StoreExchange(occasion, _KINDS, self._rank, self._world_size, deadline_s)

    def __enter__(self) -> TransferAgreement:
        return self

    def agree(self, facts: Mapping[str, object], **own: object) -> list[Message]:
        """Return every rank's `own`, in order of rank, before the first collective.

        ValueError, on every rank, if the facts of two ranks differ, naming both. RuntimeError or ValueError
        if a rank failed before it came here, or did not come.
        """
        if self._world_size == 1:
            return [own]
        posts = self._exchange("facts", {"facts": dict(facts), **own})
        self._check_facts(posts)
        return posts

    def agree_on_plan(self, plan: SyncPlan) -> None:
        """ValueError, on every rank, if plans differ; it names the rank and the first difference."""
        if self._world_size == 1:
            return
        hashes = [post["hash"] for post in self._exchange("hash", {"hash": plan.hash})]
        other = next((rank for rank, hash_ in enumerate(hashes) if hash_ != hashes[0]), None)
        if other is not None:
            self._expected = ["plan"]
            posts = self._exchange("plan", {"plan": plan.to_json() if self._rank in (0, other) else None})
            first, second = (SyncPlan.from_json(posts[rank]["plan"]) for rank in (0, other))
            raise ValueError(f"{self._what}: {other_model(first, second, other)}")

    @contextlib.contextmanager
    def transfer(self) -> Iterator[None]:
        """Let the block take any time: the others wait for this rank while its process lives."""
        with self._posts.alive():
            yield

    def settle(self, what: str, error: BaseException | None) -> None:
        """End the transfer `what`, which failed here with `error`, if not None. A barrier.

        All ranks return, or all raise the reason of the first rank that failed; a rank's own error is the
        cause.
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
            with contextlib.suppress(RuntimeError):  # the store is gone: the error itself says more
                for expected in self._expected:
                    self._posts.post(expected, failed=_failure(error))
        self._posts.leave()

    def _exchange(self, kind: str, content: Message, own: BaseException | None = None) -> list[Message]:
        """Return the posts of all ranks if none failed. own: the error of this rank."""
        try:
            self._posts.post(kind, **content)
            collect = self._posts.collect_patiently if kind == "outcome" else self._posts.collect_all
            posts = collect(kind)
        except RuntimeError as error:
            # A late rank finds that this one has gone, not what it posted.
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
    """ValueError, the same on every rank, unless a version grows."""
    if version <= before:
        raise ValueError(f"{what}: version {version} is not newer than {before}, which receivers have")


def other_model(first: SyncPlan, second: SyncPlan, rank: int) -> str:
    """Say how the plan of `rank`, `second`, differs from rank 0's, `first`."""
    difference = first.difference(second, "rank 0's plan", f"rank {rank}'s plan")
    return f"the model of rank {rank} is not that of rank 0: {difference}; build the same model on every rank"


def ranks_of(engine: Engine) -> tuple[int, int]:
    """Return rank and number of ranks of the trainer, also of an engine that is not built yet."""
    import torch.distributed as dist

    joined = dist.is_available() and dist.is_initialized()
    place = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
    if hasattr(type(engine), "native_engine"):
        trainer = getattr(engine, "trainer", None)
        native = getattr(getattr(trainer, "model", None), "engine", None)
        place = place if native is None else (int(native.rank), int(native.world_size))
    return place
