"""A data set read batch by batch: when, how often and with the random numbers that transformers does.

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

# Where torch's loader reads items one by one.
_FETCH = "torch.utils.data._utils.fetch"
Order = Callable[[int], npt.NDArray[np.int64]]


class ReadBatch(NamedTuple):
    """A batch: its rows by their numbers in the data set, and what was read of them."""

    rows: list[int]
    items: list[BatchItem]

    @property
    def width(self) -> int:
        """Tokens of its longest item with padding."""
        return max((item.length for item in self.items), default=0)

    def number_of(self, place: int) -> int:
        """The row of the item at `place`; the batch's first where a collator gave other rows than it got."""
        return self.rows[place] if len(self.items) == len(self.rows) > place else self.rows[0]


class ReadPosition(NamedTuple):
    """Random states within an epoch: before its reader was made, and before the batch ahead was read."""

    epoch: RandomState
    ahead: RandomState | None


class BatchReader:
    """Reads this rank's batches of `dataset`; one for all epochs, as there is one data loader.

    order: the rows of an epoch; asked for once an epoch, when the first batch is read. sets_epoch: whether
    the order is of a sampler that knows of epochs (accelerate then tells the data set of them on one rank
    alone). training: workers are seeded as transformers seeds those of training.
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
        """Tell the data set what accelerate's `set_epoch` tells it; a pass is of the epoch told last."""
        self._passes = epoch
        if self._tells_epoch:
            tell = getattr(self.dataset, "set_epoch", None)
            assert tell is not None
            tell(epoch)

    def close(self) -> None:
        """End worker processes that stay between epochs."""
        iterator, self._loader._iterator = self._loader._iterator, None
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            iterator._shutdown_workers()

    def read(self, skip: int = 0, position: ReadPosition | None = None) -> EpochReads:
        """Read an epoch from batch `skip` on. position: where a run that is resumed had been."""
        if not skip:
            self.tell_epoch(self._passes)
        self._batches.begin(self._passes)
        self._passes += 1
        return EpochReads(self._loader, self._batches, skip, position)


class EpochReads:
    """The batches of an epoch, one read ahead as accelerate's loader reads them."""

    def __init__(
        self, loader: DataLoader[Any], batches: _RankBatches, skip: int, position: ReadPosition | None
    ) -> None:
        self._batches, self._workers = batches, loader.num_workers
        here = RandomState.now()
        if position is not None:
            position.epoch.set()
        self._epoch = RandomState.now()
        self._ahead_state: RandomState | None = None
        # Workers have drawn numbers for what was skipped: they read it again. Else its rows are left out.
        again = skip if position is not None and self._workers else 0
        batches.skip = skip - again
        stays, kept = loader.persistent_workers, loader._iterator
        self._reads = iter(loader)
        if isinstance(self._reads, _MultiProcessingDataLoaderIter) and self._reads is not kept:
            _end_workers_with(loader if stays else self, self._reads)
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
        """The place where a run that is saved now would have to go on; None when all batches were taken."""
        return None if self._ahead is None else ReadPosition(self._epoch, self._ahead_state)

    def take(self) -> ReadBatch:
        """The next batch. ValueError when there is none, or it is faulty; else what the data set raises."""
        batch = self._ahead
        if batch is None:
            raise ValueError("train_dataset has fewer rows than when train() began")
        self._ahead = self._next()
        return batch

    def rest(self) -> list[ReadBatch]:
        """All batches that were not taken yet."""
        batches = []
        while self._ahead is not None:
            batches.append(self.take())
        return batches

    def close(self) -> None:
        """End the worker processes of this epoch."""
        if hasattr(self._reads, "_shutdown_workers"):
            self._reads._shutdown_workers()

    def _next_from(self, state: RandomState) -> ReadBatch | None:
        """The batch that was read from `state`; what draws the order of rows has been drawn before."""
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
    """Rows of this rank's batches. `skip`: batches to leave out of the next pass. `sent`: those to come."""

    def __init__(self, args: TrainingArguments, batch_size: int, order: Order) -> None:
        self._args, self._batch_size, self._order = args, batch_size, order
        self._epoch, self.skip = 0, 0
        self.sent: deque[list[int]] = deque()
        self._settled: list[list[int]] | None = None

    def begin(self, epoch: int) -> None:
        """The next pass is `epoch`."""
        self._epoch, self.skip, self._settled = epoch, 0, None
        self.sent.clear()

    def settle(self) -> None:
        """Ask for the order now, before the first batch is."""
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
    """Let the worker processes of `iterator` end when `owner` goes.

    Where it goes as part of a reference cycle, Python closes the queues before torch's iterator tells its
    workers to end, and torch waits 5 seconds for each of them.
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
    """Message about a data set that raised StopIteration when an item of `batch` was read."""
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
    """Those of torch's DataLoader about its processes. training: they get transformers' seeds."""
    workers: dict[str, Any] = {"num_workers": args.dataloader_num_workers}
    if args.dataloader_num_workers:
        if args.dataloader_multiprocessing_context in ("spawn", "forkserver"):
            # Such processes begin in the working directory, and would import what is there.
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
    """Signals that save a checkpoint are for the run alone; seeds of training as transformers sets them."""
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
    """Draw what a torch data loader draws from the global generator each time it is iterated over."""
    torch.empty((), dtype=torch.int64).random_()


def join_batches(
    batches: list[list[ReadBatch]], rules: ItemRules | None, size: int | None = None
) -> tuple[_C.TokenDataset, list[int]]:
    """A native data set of batches [micro-batch][rank], and of each of its rows the number in the data set.

    rules: how the items are read. Every batch counts as long as `size`, or as the longest: rows without
    tokens, which are never computed, fill it up. ValueError as `append_item`, and for a batch longer than
    `size`.
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
    """ValueError, naming the row, when the model's vocabulary does not hold all ids."""
    if native.max_id < vocab_size:
        return
    for place, number in enumerate(numbers):
        ids = native.ids(place)
        if len(ids) and int(ids.max()) >= vocab_size:
            raise ValueError(
                f"row {number} has token id {int(ids.max())}, the model knows {vocab_size}; {WITHOUT_ROW}"
            )
