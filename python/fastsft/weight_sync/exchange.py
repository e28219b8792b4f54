"""Posts of the trainer ranks in their store: what each says in one exchange, and what the others read of it.

Never through a process group: a writer thread may not enqueue collectives during the training thread's, and
a rank that stays away from a collective cannot be named, and leaves the others in it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar, cast

from fastsft.ranks.store import exchange_number, own_store
from fastsft.ranks.timed_store import Beat, BoundedStore, SilentStoreError
from fastsft.weight_sync.errors import seconds
from fastsft.weight_sync.interfaces import Message, Store

_SHORTEST_DELAY, _LONGEST_DELAY, _LONGEST_PATIENT_DELAY = 0.0002, 0.02, 0.2
_BEATS, _BEAT_S = "beats", 1.0
_LEAVING_S = 5.0

T = TypeVar("T")


class StoreExchange:
    """The posts of one exchange. Every rank makes one for every exchange of an `occasion`, in the same order.

    kinds: of all posts that there may be, and what a rank does that waits for them, for messages. deadline_s:
    how long a rank that says nothing is waited for, and the store. A store that was silent for so long ends
    the exchange for this rank: what it posts from then on, the others read when the store goes on.
    """

    def __init__(
        self, occasion: str, kinds: Mapping[str, str], rank: int, world_size: int, deadline_s: float
    ) -> None:
        self._kinds, self._rank, self._world_size = kinds, rank, world_size
        self._left = False
        self._silence: SilentStoreError | None = None
        self._beat: Beat | None = None  # since `alive`
        # Counted first: where the store cannot be reached, the ranks go on counting alike.
        self._prefix = f"fastsft/{occasion}/{exchange_number(occasion)}"
        self._deadline_s = seconds("deadline_s", deadline_s)
        self._store = own_store() if world_size > 1 else cast(BoundedStore, _Memory())

    def post(self, kind: str, **content: object) -> None:
        """Tell the others; `error` or `failed` in the content says that this rank failed.

        RuntimeError, and nothing is posted, if it did not fail, but the others may have given it up.
        """
        if not {"error", "failed"} & content.keys():
            self._check_presence(kind)
        key, text = self._key(kind, self._rank), json.dumps(content)
        if self._silence is not None:
            self._store.later(lambda store: store.set(key, text))
        else:
            self._ask(kind, lambda store: store.set(key, text), self._end())

    def collect(self, kind: str, ranks: Iterable[int]) -> dict[int, Message]:
        """The posts of `ranks`. RuntimeError as soon as one posts an error, or when one is silent."""
        end, delays = self._end(), _poll_delays()
        found: dict[int, Message] = {}
        missing = list(ranks)
        while True:
            found |= self._ask(kind, functools.partial(self._posted, kind, missing), end)
            missing = [rank for rank in missing if rank not in found]
            failed = {rank: post["error"] for rank, post in sorted(found.items()) if "error" in post}
            if failed:
                rank, why = next(iter(failed.items()))
                raise RuntimeError(why if kind != "written" else f"rank {rank} failed: {why}")
            if not missing:
                return found
            if time.monotonic() > end:
                raise RuntimeError(self._silent(kind, missing))
            time.sleep(next(delays))

    def collect_all(self, kind: str) -> list[Message]:
        """Everybody's post, in order of rank, whatever it says. RuntimeError when a rank is silent.

        One question a look, where `collect` asks for each rank: all ranks do this.
        """
        end, delays = self._end(), _poll_delays()
        keys = [self._key(kind, rank) for rank in range(self._world_size)]
        while not self._ask(kind, lambda store: store.check(keys), end):
            if time.monotonic() > end:
                there = self._ask(kind, functools.partial(self._posted, kind, range(self._world_size)), end)
                raise RuntimeError(self._silent(kind, [r for r in range(self._world_size) if r not in there]))
            time.sleep(next(delays))
        return [json.loads(content) for content in self._ask(kind, lambda store: store.multi_get(keys), end)]

    def collect_patiently(self, kind: str) -> list[Message]:
        """`collect_all`, where ranks may take any time that give signs of life (`alive`) meanwhile."""
        first, heard, delays = 0, 0, _poll_delays(_LONGEST_PATIENT_DELAY, 1.25)
        end = self._end()
        while first < self._world_size:
            found = self._ask(kind, functools.partial(self._look, kind, first), end)
            if found != (first, heard):
                (first, heard), end = found, self._end()
            elif time.monotonic() > end:
                raise RuntimeError(self._silent(kind, [first]))
            time.sleep(next(delays) if first < self._world_size else 0)
        return self.collect_all(kind)

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Inside, the others hear that this process lives."""
        every = min(_BEAT_S, self._deadline_s / 4)
        with self._store.beating(self._key(_BEATS, self._rank), every) as self._beat:
            yield

    def _look(self, kind: str, first: int, store: Store) -> tuple[int, int]:
        """The first rank from `first` on whose post is missing, and its signs of life."""
        ranks = range(first, self._world_size)
        if store.check([self._key(kind, first)]) and store.check([self._key(kind, rank) for rank in ranks]):
            return self._world_size, 0
        missing = next((rank for rank in ranks if not store.check([self._key(kind, rank)])), self._world_size)
        if missing == self._world_size:  # the last has come meanwhile
            return self._world_size, 0
        return missing, store.add(self._key(_BEATS, missing), 0)

    def leave(self) -> None:
        """This rank posts and collects no more. The last rank to say so removes every post.

        A second call does nothing. Posts of an exchange that a rank never leaves, because it died, stay.
        """
        if self._left:
            return
        self._left = True
        if self._silence is not None:
            self._store.later(self._tidy)
            return
        with contextlib.suppress(RuntimeError):  # of a store that has gone meanwhile: nothing is lost
            self._store.run(self._tidy, _LEAVING_S)

    def _tidy(self, store: Store) -> None:
        counter = f"{self._prefix}/left"
        if store.add(counter, 1) < self._world_size:
            return
        for kind in (*self._kinds, _BEATS):
            for rank in range(self._world_size):
                store.delete_key(self._key(kind, rank))
        store.delete_key(counter)

    def _posted(self, kind: str, ranks: Iterable[int], store: Store) -> dict[int, Message]:
        """The posts that are there."""
        keys = {rank: self._key(kind, rank) for rank in ranks}
        return {rank: json.loads(store.get(key)) for rank, key in keys.items() if store.check([key])}

    def _check_presence(self, kind: str) -> None:
        """RuntimeError if ranks that wait for `kind` may have given this one up, of which no sign came.

        They had posted that all went well there, and what they post next may come later than this rank looks.
        """
        if self._beat is None:
            return
        away = self._beat.longest_gap()
        if away <= self._deadline_s - self._beat.seconds:
            return
        others = [rank for rank in range(self._world_size) if rank != self._rank]
        if self._ask(kind, functools.partial(self._posted, kind, others), self._end()):
            raise RuntimeError(
                f"{self._kinds[kind]}: this process, or the store of the ranks, was stopped for {away:.1f} "
                f"seconds, and after {self._deadline_s:g} seconds without a sign the others give a rank "
                "up; make the call again on every rank"
            )

    def _ask(self, kind: str, work: Callable[[Store], T], end: float) -> T:
        """The answer of the store. SilentStoreError, once and for all, when it does not by `end`."""
        if self._silence is not None:
            raise self._silence
        try:
            answer: T = self._store.run(work, max(end - time.monotonic(), 0.0))
        except SilentStoreError:
            self._silence = SilentStoreError(self._deadline_s, self._kinds[kind])
            raise self._silence from None
        except RuntimeError as error:
            raise RuntimeError(
                f"{self._kinds[kind]}: the store of the ranks is gone, and with it the process that serves "
                f"it (rank 0, or torchrun's): {str(error).splitlines()[0]}"
            ) from error
        return answer

    def _end(self) -> float:
        return time.monotonic() + self._deadline_s

    def _key(self, kind: str, rank: int) -> str:
        return f"{self._prefix}/{kind}/{rank}"

    def _silent(self, kind: str, ranks: list[int]) -> str:
        return (
            f"{self._kinds[kind]}: rank {', '.join(map(str, ranks))} did not report within "
            f"{self._deadline_s:g} seconds: it died, its disk is stuck, or it makes other calls than the "
            "other ranks"
        )


def skip(occasion: str) -> None:
    """This rank has nothing to do in an exchange, and says nothing; it counts it nevertheless.

    Else a call that does nothing on some ranks only would set their counts apart for ever.
    """
    exchange_number(occasion)


class _Memory:
    """The store of a single rank."""

    def __init__(self) -> None:
        self._content: dict[str, str] = {}

    def run(self, work: Callable[[_Memory], T], limit_s: float) -> T:
        return work(self)

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


def _poll_delays(longest: float = _LONGEST_DELAY, growth: float = 2.0) -> Iterator[float]:
    """Seconds to sleep between looks: short while the others may be at the same place."""
    delay = _SHORTEST_DELAY
    while True:
        yield delay
        delay = min(growth * delay, longest)
