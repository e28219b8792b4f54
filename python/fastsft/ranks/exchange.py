"""Exchanges after which either all ranks succeed or all ranks raise.

The training thread exchanges through the process group (`AllOrNone`). All other threads exchange through the
group's store (`StoreExchange`), because they must not enqueue collectives between those of the training
thread. If a rank does not join a collective, the waiting ranks cannot tell which rank is missing; the store
shows it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from fastsft.ranks.process_group import gather_objects, host_collective
from fastsft.ranks.store import exchange_number, own_store
from fastsft.ranks.timed_store import Beat, BoundedStore, SilentStoreError
from fastsft.runtime.launch import Launch, launch

if TYPE_CHECKING:
    from typing import SupportsFloat

T = TypeVar("T")
Message = dict[str, Any]  # a JSON object, sent between ranks or members of a group

_SHORTEST_DELAY, _LONGEST_DELAY, _LONGEST_PATIENT_DELAY = 0.0002, 0.02, 0.2
_BEATS, _BEAT_S = "beats", 1.0
_LEAVING_S = 5.0
_LONGEST_S = 1e9  # 30 years; torch and locks do not accept much longer times


def on_any_rank(flag: bool) -> bool:
    """True on all ranks if `flag` is set on any rank. Collective."""
    if launch().world_size == 1:
        return flag
    import torch
    import torch.distributed as dist

    value = torch.tensor([int(flag)])
    with host_collective("exchange of a flag"):
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return bool(value.item())


def on_rank0(what: str, work: Callable[[], T]) -> T:
    """Call `work` on rank 0; return its result on every rank, or raise on every rank. Collective."""
    agreement = AllOrNone(what)
    return cast(T, agreement.settle(agreement.attempt_on_rank0(work))[0])


class AllOrNone:
    """A piece of work after which either all ranks succeed or all ranks raise.

    This object keeps the first error of this rank until `settle` reports it to all ranks. what: begins the
    message on other ranks. place: rank and world size of this process; None: as in the environment.
    """

    def __init__(self, what: str, place: Launch | None = None) -> None:
        self.what = what
        self._place = launch() if place is None else place
        self.rank, self.world_size = self._place.rank, self._place.world_size
        self._failure: Exception | None = None

    def attempt(self, work: Callable[[], T]) -> T | None:
        """Return the result of `work`; None if it fails, or if an earlier attempt has failed."""
        if self._failure is not None:
            return None
        try:
            return work()
        except Exception as error:
            self._failure = error
            return None

    def attempt_on_rank0(self, work: Callable[[], T]) -> T | None:
        """Attempt `work` on rank 0; return None on other ranks."""
        return self.attempt_if(self.rank == 0, work)

    def attempt_if(self, mine: bool, work: Callable[[], T]) -> T | None:
        """Attempt `work` if `mine` is set on this rank; otherwise return None."""
        return self.attempt(work) if mine else None

    def settle(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order. Collective.

        If any rank failed, every rank raises. A failed rank raises its own error; every other rank raises an
        error with the message of the first failed rank.
        """
        from fastsft import _C

        failure = self._failure
        note = None if failure is None else (isinstance(failure, ValueError), str(failure))
        reports = gather_objects((note, value), self._place)
        if failure is not None:
            raise failure
        for rank, (other, _) in enumerate(reports):
            if other is not None:
                kind = ValueError if other[0] else _C.PeerFailedError
                raise kind(f"{self.what}: rank {rank} failed: {other[1]}")
        return [reported for _, reported in reports]

    def settle_on_rank0(self, value: T | None) -> T:
        """Return rank 0's value on every rank. Raises as `settle` does. Collective."""
        first = self.settle(value)[0]
        assert first is not None, self.what
        return first


class Store(Protocol):
    """The methods of a torch.distributed store that exchanges use."""

    def set(self, key: str, value: str, /) -> object: ...

    def get(self, key: str, /) -> bytes | str: ...

    def multi_get(self, keys: list[str], /) -> Sequence[bytes | str]: ...

    def check(self, keys: list[str], /) -> bool: ...

    def add(self, key: str, amount: int, /) -> int: ...

    def delete_key(self, key: str, /) -> object: ...


class StoreGoneError(RuntimeError):
    """The store cannot be reached, because the process that serves it has ended."""


class SilentRankError(RuntimeError):
    """The error if some ranks have not posted in time. ranks: those ranks."""

    def __init__(self, message: str, ranks: list[int]) -> None:
        super().__init__(message)
        self.ranks = ranks


class StoreExchange:
    """One exchange of posts (JSON objects) between all ranks, through the store.

    occasion: the exchange's subject. All ranks must construct the exchanges of an occasion in the same
    order. kinds: the kinds of posts, each with the phrase that begins error messages about this kind.
    deadline_s: seconds after which a rank or a store without a sign of life is given up. If the store is
    given up, the exchange ends for this rank. Its later posts are queued, and other ranks read them once the
    store answers.
    """

    def __init__(
        self, occasion: str, kinds: Mapping[str, str], rank: int, world_size: int, deadline_s: float
    ) -> None:
        self._kinds, self._rank, self._world_size = kinds, rank, world_size
        self._left, self._give_up = False, math.inf
        self._silence: SilentStoreError | None = None
        self._beat: Beat | None = None  # set by `alive`
        # The number is taken before anything can fail, so that all ranks count alike even if a rank cannot
        # reach the store.
        self._prefix = f"fastsft/{occasion}/{exchange_number(occasion)}"
        self._deadline_s = seconds("deadline_s", deadline_s)
        self._store = own_store() if world_size > 1 else cast(BoundedStore, _SingleRankStore())

    def post(self, kind: str, **content: object) -> None:
        """Post `content` to the other ranks. A key `error` or `failed` means that this rank has failed.

        RuntimeError, and no post, if this rank has not failed but the other ranks may have given it up.
        """
        if content.get("error") is None and "failed" not in content:
            self._check_presence(kind)
        key, text = self._key(kind, self._rank), json.dumps(content)
        if self._silence is not None:
            self._store.later(lambda store: store.set(key, text))
        else:
            self._ask(kind, lambda store: store.set(key, text), self._end())

    def collect(self, kind: str, ranks: Iterable[int]) -> dict[int, Message]:
        """Wait for the posts of `ranks`, and return them by rank.

        RuntimeError if a rank posts an error, or does not post in time.
        """
        end, delays = self._end(), _poll_delays()
        posts: dict[int, Message] = {}
        missing = list(ranks)
        while True:
            posts |= self._ask(kind, functools.partial(self._posted, kind, missing), end)
            missing = [rank for rank in missing if rank not in posts]
            failed = {rank: post["error"] for rank, post in sorted(posts.items()) if "error" in post}
            if failed:
                rank, why = next(iter(failed.items()))
                raise RuntimeError(why if kind != "written" else f"rank {rank} failed: {why}")
            if not missing:
                return posts
            if time.monotonic() > end:
                raise self._silent(kind, missing)
            time.sleep(next(delays))

    def collect_all(self, kind: str) -> list[Message]:
        """Wait for the posts of all ranks, and return them in rank order, including errors.

        RuntimeError if a rank does not post in time. Each poll is a single request for all ranks, because
        every rank polls here; `collect` makes one request for each missing rank.
        """
        end, delays = self._end(), _poll_delays()
        keys = [self._key(kind, rank) for rank in range(self._world_size)]
        while not self._ask(kind, lambda store: store.check(keys), end):
            if time.monotonic() > end:
                there = self._ask(kind, functools.partial(self._posted, kind, range(self._world_size)), end)
                raise self._silent(kind, [rank for rank in range(self._world_size) if rank not in there])
            time.sleep(next(delays))
        return [json.loads(content) for content in self._ask(kind, lambda store: store.multi_get(keys), end)]

    def collect_patiently(self, kind: str) -> list[Message]:
        """Return the posts of all ranks; wait as long as the missing ranks send signs of life (`alive`)."""
        first, heard, delays = 0, 0, _poll_delays(_LONGEST_PATIENT_DELAY, 1.25)
        end = self._end()
        while first < self._world_size:
            state = self._ask(kind, functools.partial(self._look, kind, first), end)
            if state != (first, heard):
                (first, heard), end = state, self._end()
            elif time.monotonic() > min(end, self._give_up):
                raise self._silent(kind, [first])
            time.sleep(next(delays) if first < self._world_size else 0)
        return self.collect_all(kind)

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Send signs of life to the other ranks while the block runs."""
        if self._world_size == 1:
            yield
            return
        every = min(_BEAT_S, self._deadline_s / 4)
        with self._store.beating(self._key(_BEATS, self._rank), every) as self._beat:
            yield

    def give_up_in(self, seconds: float) -> None:
        """End `collect_patiently` in another thread after `seconds` at the latest."""
        self._give_up = time.monotonic() + seconds

    def _look(self, kind: str, first: int, store: Store) -> tuple[int, int]:
        """Return the lowest rank >= `first` that has not posted, and how many signs of life it has sent.

        If all these ranks have posted, return the world size and 0.
        """
        ranks = range(first, self._world_size)
        if store.check([self._key(kind, first)]) and store.check([self._key(kind, rank) for rank in ranks]):
            return self._world_size, 0
        missing = next((rank for rank in ranks if not store.check([self._key(kind, rank)])), self._world_size)
        if missing == self._world_size:  # the last post has arrived since the check above
            return self._world_size, 0
        return missing, store.add(self._key(_BEATS, missing), 0)

    def leave(self) -> None:
        """End the exchange for this rank. The last rank to leave deletes all posts.

        A second call does nothing. If a rank dies without leaving, the posts stay in the store.
        """
        if self._left:
            return
        self._left = True
        if self._silence is not None:
            self._store.later(self._tidy)
            return
        with contextlib.suppress(RuntimeError):  # if the store has gone, no posts are left to delete
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
        """Return the posts of `ranks` that are in the store, by rank."""
        keys = {rank: self._key(kind, rank) for rank in ranks}
        return {rank: json.loads(store.get(key)) for rank, key in keys.items() if store.check([key])}

    def _check_presence(self, kind: str) -> None:
        """Raise RuntimeError if this rank was silent for so long that other ranks may have given it up.

        The error is raised if any other rank has posted `kind`: it has waited for this rank. Whether it still
        waits cannot be known, because it may post its failure just after this check.
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
        """Return `work(store)`.

        SilentStoreError if the store does not answer by `end`; all later calls then raise it, too.
        """
        if self._silence is not None:
            raise self._silence
        try:
            answer: T = self._store.run(work, max(end - time.monotonic(), 0.0))
        except SilentStoreError:
            self._silence = SilentStoreError(self._deadline_s, self._kinds[kind])
            raise self._silence from None
        except RuntimeError as error:
            raise StoreGoneError(
                f"{self._kinds[kind]}: the store of the ranks is gone, and with it the process that serves "
                f"it (rank 0, or torchrun's): {str(error).splitlines()[0]}"
            ) from error
        return answer

    def _end(self) -> float:
        return time.monotonic() + self._deadline_s

    def _key(self, kind: str, rank: int) -> str:
        return f"{self._prefix}/{kind}/{rank}"

    def _silent(self, kind: str, ranks: list[int]) -> SilentRankError:
        return SilentRankError(
            f"{self._kinds[kind]}: rank {', '.join(map(str, ranks))} did not report within "
            f"{self._deadline_s:g} seconds: it died, its disk is stuck, or it makes other calls than the "
            "other ranks",
            ranks,
        )


def skip(occasion: str) -> None:
    """Count an exchange of `occasion` in which this rank takes no part.

    Ranks match exchanges by number, so a rank that skips an exchange must count it.
    """
    exchange_number(occasion)


def seconds(what: str, value: SupportsFloat | str) -> float:
    """Return `value`, a number of seconds, as a float.

    ValueError unless it is above 0 and at most 30 years. what: begins the message.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, str) or not 0 < number <= _LONGEST_S:
        raise ValueError(f"{what}: expected seconds, more than 0 and at most {_LONGEST_S:g}, got {value!r}")
    return number


class _SingleRankStore:
    """The store of a run with one rank, whose calls cannot block and need no thread."""

    def __init__(self) -> None:
        from torch.distributed import HashStore  # type: ignore[attr-defined]

        self._store: Store = HashStore()

    def run(self, work: Callable[[Store], T], limit_s: float) -> T:
        return work(self._store)


def _poll_delays(longest: float = _LONGEST_DELAY, growth: float = 2.0) -> Iterator[float]:
    """Yield the growing pauses between polls, in seconds. They begin short: ranks often arrive together."""
    delay = _SHORTEST_DELAY
    while True:
        yield delay
        delay = min(growth * delay, longest)
