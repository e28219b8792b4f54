"""What ranks tell each other beside the training: through a store, never through a process group.

A writer thread may not enqueue collectives beside the training thread's, and a rank that stays away from a
collective cannot be named.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fastsft.ranks.store import own_store

_SHORTEST_NAP, _LONGEST_NAP = 0.0002, 0.02
_numbers: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)


class Verdicts:
    """The posts of one exchange. Every rank makes one for every exchange of an `occasion`, in the same order.

    kinds: of all posts that there may be. deadline_s: how long a rank that says nothing is waited for.
    """

    def __init__(
        self, occasion: str, kinds: Sequence[str], rank: int, world_size: int, deadline_s: float
    ) -> None:
        self._kinds, self._rank, self._world_size = kinds, rank, world_size
        self._deadline_s, self._left = deadline_s, False
        # Counted first: where the store cannot be reached, the ranks go on counting alike.
        self._prefix = f"fastsft/{occasion}/{next(_numbers[occasion])}"
        self._store: Any = own_store() if world_size > 1 else _Memory()

    def post(self, kind: str, **content: Any) -> None:
        """Tell the others; `error` in the content says that this rank failed."""
        assert kind in self._kinds, kind
        self._store.set(self._key(kind, self._rank), json.dumps(content))

    def collect(self, kind: str, ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
        """The posts of `ranks`. RuntimeError as soon as one posts an error, or when one is silent."""
        end, naps = time.monotonic() + self._deadline_s, _naps()
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
                raise RuntimeError(self._silent(missing))
            time.sleep(next(naps))

    def collect_all(self, kind: str) -> list[dict[str, Any]]:
        """Everybody's post, in order of rank, whatever it says. RuntimeError when a rank is silent.

        One question a look, where `collect` asks for each rank: all ranks do this.
        """
        end, naps = time.monotonic() + self._deadline_s, _naps()
        keys = [self._key(kind, rank) for rank in range(self._world_size)]
        while not self._store.check(keys):
            if time.monotonic() > end:
                raise RuntimeError(
                    self._silent([r for r, key in enumerate(keys) if not self._store.check([key])])
                )
            time.sleep(next(naps))
        return [json.loads(content) for content in self._store.multi_get(keys)]

    def leave(self) -> None:
        """This rank posts and collects no more. The last rank to say so removes every post.

        A second call does nothing. Posts of an exchange that a rank never leaves, because it died, stay.
        """
        if self._left:
            return
        self._left = True
        counter = f"{self._prefix}/left"
        if self._store.add(counter, 1) < self._world_size:
            return
        for kind in self._kinds:
            for rank in range(self._world_size):
                self._store.delete_key(self._key(kind, rank))
        self._store.delete_key(counter)

    def _key(self, kind: str, rank: int) -> str:
        return f"{self._prefix}/{kind}/{rank}"

    def _silent(self, ranks: list[int]) -> str:
        return (
            f"rank {', '.join(map(str, ranks))} did not report within {self._deadline_s:g} seconds: it died, "
            "its disk is stuck, or it makes other calls than the other ranks"
        )


def skip(occasion: str) -> None:
    """This rank has nothing to do in an exchange, and says nothing; it counts it nevertheless.

    Else a call that does nothing on some ranks only would set their counts apart for ever.
    """
    next(_numbers[occasion])


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

    def multi_get(self, keys: list[str]) -> list[str]:
        return [self._content[key] for key in keys]

    def add(self, key: str, count: int) -> int:
        return count

    def delete_key(self, key: str) -> None:
        self._content.pop(key, None)


def _naps() -> Iterator[float]:
    """Seconds to sleep between looks: short while the others may be at the same place."""
    nap = _SHORTEST_NAP
    while True:
        yield nap
        nap = min(2 * nap, _LONGEST_NAP)
