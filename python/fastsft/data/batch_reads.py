"""Read a data set batch by batch, at the same times and with the same random numbers as transformers.

The rules come from transformers 4.57, trainer.py (_get_dataloader, seed_worker), and from accelerate,
data_loader.py (BatchSamplerShard, DataLoaderShard, skip_first_batches).
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

# The torch module in which a data loader calls the data set's __getitem__.
_FETCH = "torch.utils.data._utils.fetch"
Order = Callable[[int], npt.NDArray[np.int64]]


class ReadBatch(NamedTuple):
    """A batch of items. rows: the items' row numbers in the data set. items: the collated items."""

    rows: list[int]
    items: list[BatchItem]

    @property
    def width(self) -> int:
        """The padded length of the batch in tokens."""
        return max((item.length for item in self.items), default=0)

    def number_of(self, place: int) -> int:
        """Return the row number for item `place` in the batch.

        If a collator has changed the item count, return the first row number of the batch.
        """
        return self.rows[place] if len(self.items) == len(self.rows) > place else self.rows[0]


class ReadPosition(NamedTuple):
    """The random states from which reading resumes within an epoch.

    epoch: the state before the epoch's reader was made. ahead: the state before the next batch was read in
    advance; None if worker processes read the data set.
    """

    epoch: RandomState
    ahead: RandomState | None


class BatchReader:
    """A reader of this rank's batches of `dataset` in all epochs, like a single data loader.

    order: returns the row numbers of an epoch; called once per epoch, before the first batch is read.
    batch_size: rows per batch. training: seed the worker processes as transformers does for training.
    sets_epoch: True if the order comes from a sampler with a method `set_epoch`. In that case accelerate
    calls the data set's own `set_epoch` only if there is a single rank.
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
        """Set the epoch number of the next pass over the data, like accelerate's `set_epoch`."""
        self._passes = epoch
        if self._tells_epoch:
            tell = getattr(self.dataset, "set_epoch", None)
            assert tell is not None
            tell(epoch)

    def close(self) -> None:
        """End the worker processes that live on between epochs."""
        iterator, self._loader._iterator = self._loader._iterator, None
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            iterator._shutdown_workers()

    def read(self, skip: int = 0, position: ReadPosition | None = None) -> EpochReads:
        """Begin to read an epoch at batch number `skip`.

        position: the saved position if a run is resumed; otherwise None.
        """
        if not skip:
            self.tell_epoch(self._passes)
        self._batches.begin(self._passes)
        self._passes += 1
        return EpochReads(self._loader, self._batches, skip, position)


class EpochReads:
    """The batches of an epoch. The next batch is always read in advance, as by accelerate's loader."""

    def __init__(
        self, loader: DataLoader[Any], batches: _RankBatches, skip: int, position: ReadPosition | None
    ) -> None:
        self._batches, self._workers = batches, loader.num_workers
        here = RandomState.now()
        if position is not None:
            position.epoch.set()
        self._epoch = RandomState.now()
        self._ahead_state: RandomState | None = None
        # The random state of a worker is not saved. To restore the state, workers read the skipped batches
        # again.
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
        """Return the position that a checkpoint saved now must contain; None at the epoch's end."""
        return None if self._ahead is None else ReadPosition(self._epoch, self._ahead_state)

    def take(self) -> ReadBatch:
        """Return the next batch.

        ValueError if no batch is left or the batch is faulty. Errors of the data set are not caught.
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
        """Draw the row order, set the random state to `state`, and read a batch."""
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
    """The row numbers of this rank's batches.

    skip: how many batches the next pass skips at its beginning. sent: batches that the loader has
    requested and not yet returned.
    """

    def __init__(self, args: TrainingArguments, batch_size: int, order: Order) -> None:
        self._args, self._batch_size, self._order = args, batch_size, order
        self._epoch, self.skip = 0, 0
        self.sent: deque[list[int]] = deque()
        self._settled: list[list[int]] | None = None

    def begin(self, epoch: int) -> None:
        """Start a pass over epoch number `epoch`."""
        self._epoch, self.skip, self._settled = epoch, 0, None
        self.sent.clear()

    def settle(self) -> None:
        """Draw the row order of the epoch now, unless it has been drawn."""
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
    """End the worker processes of `iterator` when `owner` is deleted.

    Without this, if `owner` is deleted in a reference cycle, Python may close the queues before torch's
    iterator ends its workers. torch then waits 5 seconds for each worker.
    """
    weakref.finalize(
        owner, _end_workers, iterator._workers_done_event, iterator._index_queues, iterator._workers
    ).atexit = False


def _end_workers(done: Event, queues: list[Queue[Any]], workers: Sequence[BaseProcess]) -> None:
    if any(getattr(queue, "_closed", False) for queue in queues):
        return  # torch has already told the workers to end
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
    """Return the DataLoader arguments for worker processes.

    training: seed the workers as transformers does.
    """
    workers: dict[str, Any] = {"num_workers": args.dataloader_num_workers}
    if args.dataloader_num_workers:
        if args.dataloader_multiprocessing_context in ("spawn", "forkserver"):
            # A spawned process adds the working directory to sys.path. A module there could then replace an
            # installed module.
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
    """Prepare a worker process: set its signal handlers, and seed it as transformers does.

    The signals by which the main process saves a checkpoint must not do so in a worker.
    """
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
    """Draw a number from torch's global generator, as a torch data loader does for its seed in each epoch."""
    torch.empty((), dtype=torch.int64).random_()


def join_batches(
    batches: list[list[ReadBatch]], rules: ItemRules | None, size: int | None = None
) -> tuple[_C.TokenDataset, list[int]]:
    """Join batches [micro-batch][rank] to a native data set. Return it with the row numbers of its rows.

    rules: the rules for reading the items. Shorter batches are filled up with rows without tokens, which are
    never computed. size: the row count up to which they are filled; None: that of the longest batch.
    ValueError as in `append_item`, and if a batch has more than `size` rows.
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
    """Raise ValueError, with the row number, if a token id is not below `vocab_size`.

    numbers: the row numbers for the message.
    """
    if native.max_id < vocab_size:
        return
    for place, number in enumerate(numbers):
        ids = native.ids(place)
        if len(ids) and int(ids.max()) >= vocab_size:
            raise ValueError(
                f"row {number} has token id {int(ids.max())}, the model knows {vocab_size}; {WITHOUT_ROW}"
            )
