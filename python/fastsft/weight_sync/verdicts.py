"""What ranks tell each other while they write: through a store, never through a process group.

A writer thread may not enqueue collectives beside the training thread's.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable
from typing import Any

from fastsft.rank_store import own_store

_POLL_SECONDS = 0.02
_saves = itertools.count()


class Verdicts:
    """The posts of one save. Every rank makes one for every save, in the same order.

    deadline_s: how long `collect` waits for a rank that says nothing.
    """

    def __init__(self, rank: int, world_size: int, deadline_s: float) -> None:
        self._rank, self._world_size, self._deadline_s = rank, world_size, deadline_s
        self._store = own_store() if world_size > 1 else _Memory()
        self._prefix = f"fastsft/save/{next(_saves)}"

    def post(self, kind: str, **content: Any) -> None:
        """Tell the others; `error` in the content says that this rank failed."""
        self._store.set(self._key(kind, self._rank), json.dumps(content))

    def collect(self, kind: str, ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
        """The posts of `ranks`. RuntimeError as soon as one posts an error, or when one is silent."""
        end = time.monotonic() + self._deadline_s
        found: dict[int, dict[str, Any]] = {}
        missing = list(ranks)
        while True:
            for rank in [r for r in missing if self._store.check([self._key(kind, r)])]:
                found[rank] = json.loads(self._store.get(self._key(kind, rank)))
                missing.remove(rank)
            failed = {rank: post["error"] for rank, post in sorted(found.items()) if "error" in post}
            if failed:
                rank, why = next(iter(failed.items()))
                raise RuntimeError(why if kind != "written" else f"rank {rank} failed: {why}")
            if not missing:
                return found
            if time.monotonic() > end:
                raise RuntimeError(
                    f"rank {_listed(missing)} did not report within {self._deadline_s:g} seconds: "
                    "it died or its disk is stuck"
                )
            time.sleep(_POLL_SECONDS)

    def _key(self, kind: str, rank: int) -> str:
        return f"{self._prefix}/{kind}/{rank}"


class _Memory:
    """The store of a single rank."""

    def __init__(self) -> None:
        self._content: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self._content[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self._content for key in keys)

    def get(self, key: str) -> str:
        return self._content[key]


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
