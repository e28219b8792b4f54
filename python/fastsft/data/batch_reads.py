"""Read a data set batch by batch, with the timing and random numbers of transformers.

Sources: transformers 4.57 trainer.py (_get_dataloader, seed_worker), accelerate data_loader.py
(BatchSamplerShard, DataLoaderShard, skip_first_batches).
"""

from __future__ import annotations

import os
import random
import signal
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.data.collators import BatchItem, BatchItems, Collation
from fastsft.data.interfaces import WITHOUT_ROW, SizedDataset
from fastsft.data.item_rows import append_item
from fastsft.data.item_rules import ItemRules
from fastsft.runtime.random_state import RandomState

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event

# torch's loader reads items in this module.
_FETCH = "torch.utils.data._utils.fetch"
Order = Callable[[int], npt.NDArray[np.int64]]


class ReadBatch(NamedTuple):
    """A batch: the numbers of its rows in the data set, and the items that were read."""

    rows: list[int]
    items: list[BatchItem]

    @property
    def width(self) -> int:
        """Padded length of the batch in tokens."""
        return max((item.length for item in self.items), default=0)

    def number_of(self, place: int) -> int:
        """Return an item's row number; the batch's first row if a collator changed the number of rows."""
        return self.rows[place] if len(self.items) == len(self.rows) > place else self.rows[0]


class ReadPosition(NamedTuple):
    """Random states within an epoch: before its reader was made, and before the batch ahead was read."""

    epoch: RandomState
    ahead: RandomState | None


class BatchReader:
    """Reads this rank's batches of `dataset`, in all epochs, like a single data loader.

    order: returns the rows of an epoch; called once an epoch, before the first batch is read. sets_epoch: the
    order comes from a sampler with epochs (accelerate then calls the data set's `set_epoch` on a lone rank
    only). training: workers are seeded as transformers seeds them in training.
    """

    def __init__(
        self,
        args: TrainingArguments,
        dataset: SizedDataset,
        collation: Collation,
        order: Order,
        batch_size: int,
        *,
        training: bool,
        sets_epoch: bool,
    ) -> None:
        self._args, self.dataset = args, dataset
        self._tells_epoch = hasattr(dataset, "set_epoch") and not (sets_epoch and args.world_size > 1)
        self._batches = _RankBatches(args, batch_size, order)
        self._loader: DataLoader[Any] = DataLoader(
            cast("Dataset[Any]", dataset),
            batch_sampler=self._batches,
            collate_fn=collation,
            **worker_options(args, training),
        )
        self._passes = 0

    def tell_epoch(self, epoch: int) -> None:
        """Set the next pass's epoch, as accelerate's `set_epoch` does."""
        self._passes = epoch
        if self._tells_epoch:
            tell = getattr(self.dataset, "set_epoch", None)
            assert tell is not None
            tell(epoch)

    def close(self) -> None:
        """End worker processes that persist between epochs."""
        iterator, self._loader._iterator = self._loader._iterator, None
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            iterator._shutdown_workers()

    def read(self, skip: int = 0, position: ReadPosition | None = None) -> EpochReads:
        """Read an epoch from batch `skip` on. position: that of the run that is resumed."""
        if not skip:
            self.tell_epoch(self._passes)
        self._batches.begin(self._passes)
        self._passes += 1
        return EpochReads(self._loader, self._batches, skip, position)


class EpochReads:
    """An epoch's batches; one batch is read ahead, as accelerate's loader does."""

    def __init__(
        self, loader: DataLoader[Any], batches: _RankBatches, skip: int, position: ReadPosition | None
    ) -> None:
        self._batches, self._workers = batches, loader.num_workers
        here = RandomState.now()
        if position is not None:
            position.epoch.set()
        self._epoch = RandomState.now()
        self._ahead_state: RandomState | None = None
        # Workers have drawn random numbers for the skipped batches, so they read them again.
        again = skip if position is not None and self._workers else 0
        batches.skip = skip - again
        persists, earlier = loader.persistent_workers, loader._iterator
        self._reads = iter(loader)
        if isinstance(self._reads, _MultiProcessingDataLoaderIter) and self._reads is not earlier:
            _end_workers_with(loader if persists else self, self._reads)
        for _ in range(again):
            self._next()
        if position is None:
            self._ahead = self._next()
            return
        if position.ahead is not None and not self._workers:
            self._ahead = self._next_from(position.ahead)
        else:
            self._ahead = self._next()
        here.set()

    def position(self) -> ReadPosition | None:
        """Return the position from which a run saved now would resume; None at the end of the epoch."""
        return None if self._ahead is None else ReadPosition(self._epoch, self._ahead_state)

    def take(self) -> ReadBatch:
        """Return the next batch. ValueError without a batch or for a faulty one; else the data set's
        errors.
        """
        batch = self._ahead
        if batch is None:
            raise ValueError("train_dataset has fewer rows than when train() began")
        self._ahead = self._next()
        return batch

    def rest(self) -> list[ReadBatch]:
        """Return all remaining batches."""
        batches = []
        while self._ahead is not None:
            batches.append(self.take())
        return batches

    def close(self) -> None:
        """End the worker processes of this epoch."""
        if hasattr(self._reads, "_shutdown_workers"):
            self._reads._shutdown_workers()

    def _next_from(self, state: RandomState) -> ReadBatch | None:
        """Read a batch from the random state `state`, after the row order has been drawn."""
        self._batches.settle()
        state.set()
        return self._next()

    def _next(self) -> ReadBatch | None:
        self._ahead_state = None if self._workers else RandomState.now()
        try:
            items: BatchItems = next(self._reads)
        except StopIteration as error:
            if not self._batches.sent:
                return None
            raise ValueError(_ended_within(self._batches.sent[0], error)) from error
        if isinstance(items, ValueError):
            raise items
        return ReadBatch(self._batches.sent.popleft(), items)


class _RankBatches(Sampler[list[int]]):
    """Row numbers of this rank's batches. skip: batches to omit from the next pass. sent: unread batches."""

    def __init__(self, args: TrainingArguments, batch_size: int, order: Order) -> None:
        self._args, self._batch_size, self._order = args, batch_size, order
        self._epoch, self.skip = 0, 0
        self.sent: deque[list[int]] = deque()
        self._settled: list[list[int]] | None = None

    def begin(self, epoch: int) -> None:
        """Set the next pass's epoch."""
        self._epoch, self.skip, self._settled = epoch, 0, None
        self.sent.clear()

    def settle(self) -> None:
        """Draw the order now, before the first batch is requested."""
        if self._settled is None:
            args = self._args
            batches = _C.rank_micro_batches(
                self._order(self._epoch), self._batch_size, args.process_index, args.world_size,
                args.dataloader_drop_last,
            )  # fmt: skip
            self._settled = [batch.tolist() for batch in batches[self.skip :]]

    def __iter__(self) -> Iterator[list[int]]:
        self.settle()
        assert self._settled is not None
        for batch in self._settled:
            self.sent.append(batch)
            yield list(batch)


def _end_workers_with(owner: object, iterator: _MultiProcessingDataLoaderIter) -> None:
    """Let the worker processes of `iterator` end when `owner` is deleted.

    If `owner` is deleted in a reference cycle, Python closes the queues before torch's iterator ends its
    workers, and torch waits 5 seconds for each of them.
    """
    weakref.finalize(
        owner, _end_workers, iterator._workers_done_event, iterator._index_queues, iterator._workers
    ).atexit = False


def _end_workers(done: Event, queues: list[Queue[Any]], workers: Sequence[BaseProcess]) -> None:
    if any(getattr(queue, "_closed", False) for queue in queues):
        return  # torch has ended them
    done.set()
    for queue in queues:
        queue.put(None)
    for worker in workers:
        worker.join(5)


def _ended_within(batch: list[int], error: StopIteration) -> str:
    """Return the message about a data set that raised StopIteration while an item of `batch` was read."""
    rows = batch
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == _FETCH and "idx" in trace.tb_frame.f_locals:
            rows = [trace.tb_frame.f_locals["idx"]]
        trace = trace.tb_next
    which = "row" if len(rows) == 1 else "one of the rows"
    return (
        f"{which} {', '.join(map(str, rows))} of the data set: reading it raised StopIteration, at which "
        "transformers' Trainer leaves out the rest of the epoch without a word; let __getitem__ return an "
        "item, or raise IndexError"
    )


def worker_options(args: TrainingArguments, training: bool) -> dict[str, Any]:
    """Return DataLoader's options about worker processes. training: they get transformers' seeds."""
    workers: dict[str, Any] = {"num_workers": args.dataloader_num_workers}
    if args.dataloader_num_workers:
        if args.dataloader_multiprocessing_context in ("spawn", "forkserver"):
            # Such processes begin in the working directory, and would import modules from it.
            os.environ.setdefault("PYTHONSAFEPATH", "1")
        seeding = (args.dataloader_num_workers, args.process_index) if training else None
        workers |= {
            "worker_init_fn": partial(_begin_worker, seeding=seeding),
            "prefetch_factor": args.dataloader_prefetch_factor,
            "persistent_workers": args.dataloader_persistent_workers,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
        }
    return workers


def _begin_worker(worker: int, *, seeding: tuple[int, int] | None) -> None:
    """Leave signals that save a checkpoint to the run, and seed a training worker as transformers does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if seeding is None:
        return
    workers, rank = seeding
    seed = workers * rank + torch.initial_seed() % 2**32
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def draw_loader_seed() -> None:
    """Draw the number that a torch data loader draws from the global generator at each iteration."""
    torch.empty((), dtype=torch.int64).random_()


def join_batches(
    batches: list[list[ReadBatch]], rules: ItemRules | None, size: int | None = None
) -> tuple[_C.TokenDataset, list[int]]:
    """Join batches [micro-batch][rank] to a native data set; return also the row numbers of its rows.

    rules: for reading the items. All batches are filled up to `size` rows, or to the longest batch, by rows
    without tokens, which are never computed. ValueError as `append_item`, and for a batch with more than
    `size` rows.
    """
    native, numbers = _C.TokenDataset(), []
    flat = [batch for ranks in batches for batch in ranks]
    longest = max((len(batch.items) for batch in flat), default=0)
    if size is not None and longest > size:
        raise ValueError(
            f"evaluation: data_collator makes {longest} rows of a batch of {size}, expected a row for each"
        )
    nothing = np.zeros(0, dtype=np.int32)
    for batch in flat:
        for place in range(longest if size is None else size):
            number = batch.number_of(place)
            numbers.append(number)
            if place < len(batch.items):
                append_item(native, batch.items[place].item, number, rules)
            else:
                native.append(nothing, [])
    return native, numbers


def check_ids(native: _C.TokenDataset, numbers: list[int], vocab_size: int) -> None:
    """Raise ValueError, naming the row, if the model's vocabulary does not contain all ids."""
    if native.max_id < vocab_size:
        return
    for place, number in enumerate(numbers):
        ids = native.ids(place)
        if len(ids) and int(ids.max()) >= vocab_size:
            raise ValueError(
                f"row {number} has token id {int(ids.max())}, the model knows {vocab_size}; {WITHOUT_ROW}"
            )
