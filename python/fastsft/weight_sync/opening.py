"""Before the first gather of a transfer: do all trainer ranks mean the same one, and can all begin?

A rank that raises before a collective, or never calls, would leave the others in it. So ranks first meet in
the store: whoever cannot begin says why, and everybody raises that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from fastsft.weight_sync.plan import SyncPlan
from fastsft.weight_sync.verdicts import Verdicts

_KINDS = ("facts", "hash", "plan")


class Opening:
    """A `with` block around everything that a rank does until `agree_on_plan`, and on into the transfer.

    occasion: which function it is, the same on every rank. what: for messages. deadline_s: how long ranks
    that do not come are waited for. Collective over all ranks.
    """

    def __init__(self, engine: Any, occasion: str, what: str, deadline_s: float) -> None:
        self._rank, self._world_size = ranks_of(engine)
        self._what = what
        self._expected = list(_KINDS[:2])  # what the others wait for from this rank
        self._verdicts = Verdicts(occasion, _KINDS, self._rank, self._world_size, deadline_s)

    def __enter__(self) -> Opening:
        return self

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Before the first collective. ValueError, on every rank, when the facts of two ranks differ, naming
        both. RuntimeError, or a ValueError again, when a rank failed before it came here, or did not come."""
        if self._world_size > 1:
            self._check_facts(self._exchange("facts", facts=dict(facts)))

    def agree_on_plan(self, plan: SyncPlan) -> None:
        """ValueError, on every rank, when plans differ; it names the rank and the first difference."""
        if self._world_size == 1:
            return
        hashes = [post["hash"] for post in self._exchange("hash", hash=plan.hash)]
        other = next((rank for rank, found in enumerate(hashes) if found != hashes[0]), None)
        if other is not None:
            self._expected = ["plan"]
            posts = self._exchange("plan", plan=plan.to_json() if self._rank in (0, other) else None)
            first, second = (SyncPlan.from_json(posts[rank]["plan"]) for rank in (0, other))
            raise ValueError(f"{self._what}: {other_model(first, second, other)}")
        self._verdicts.leave()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return self._verdicts.leave()
        failed = [isinstance(error, ValueError), f"{type(error).__name__}: {error}"]
        with contextlib.suppress(RuntimeError):  # of a store that is gone: the error itself says more
            for expected in self._expected:
                self._verdicts.post(expected, failed=failed)
            self._verdicts.leave()

    def _exchange(self, kind: str, **content: Any) -> list[dict[str, Any]]:
        """Everybody's post, when none of them failed."""
        self._verdicts.post(kind, **content)
        try:
            posts = self._verdicts.collect_all(kind)
        except RuntimeError as error:
            # A late rank finds that this one has gone, not what it posted.
            raise RuntimeError(f"{self._what}: {error}") from error
        self._expected = self._expected[1:]
        self._check_failures(posts)
        return posts

    def _check_failures(self, posts: list[dict[str, Any]]) -> None:
        for rank, post in enumerate(posts):
            if "failed" in post:
                is_value, why = post["failed"]
                raise (ValueError if is_value else RuntimeError)(f"{self._what}: rank {rank} failed: {why}")

    def _check_facts(self, posts: list[dict[str, Any]]) -> None:
        for rank, post in enumerate(posts):
            for name, value in posts[0]["facts"].items():
                other = post["facts"].get(name)
                if other != value:
                    raise ValueError(
                        f"{self._what}: {name}: rank 0 has {value}, rank {rank} {other}; all ranks make the "
                        "same calls with the same arguments"
                    )


def other_model(first: SyncPlan, second: SyncPlan, rank: int) -> str:
    """How the plan of `rank` differs from rank 0's, `first`."""
    difference = first.difference(second, "rank 0's plan", f"rank {rank}'s plan")
    return f"the model of rank {rank} is not that of rank 0: {difference}; build the same model on every rank"


def ranks_of(engine: Any) -> tuple[int, int]:
    """(rank, number of ranks) of the trainer, also of an engine that is not built yet."""
    import torch.distributed as dist

    joined = dist.is_available() and dist.is_initialized()
    found = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
    if hasattr(type(engine), "native_engine"):
        native = getattr(getattr(engine.trainer, "model", None), "engine", None)
        found = found if native is None else (int(native.rank), int(native.world_size))
    return found
