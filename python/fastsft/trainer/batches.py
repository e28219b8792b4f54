"""The rows of each optimizer step, and the position in the data from which a resumed run reads on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from fastsft.arguments import TrainingArguments
from fastsft.callbacks.state import TrainerState
from fastsft.data.batch_reads import (
    BatchReader,
    EpochReads,
    ReadPosition,
    check_ids,
    draw_loader_seed,
    join_batches,
)
from fastsft.data.item_rules import ItemRules
from fastsft.data.token_rows import TokenRows, untouched_rows
from fastsft.planning.run_plan import EpochGroups, single_step, step_source
from fastsft.ranks import process_group as launcher
from fastsft.ranks.exchange import AllOrNone
from fastsft.runtime.messages import tell
from fastsft.runtime.random_state import RandomState
from fastsft.runtime.timeouts import deadline
from fastsft.trainer.rows import RowReader, gather_batches
from fastsft.trainer.token_counter import count_tokens

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.checkpoint.saved_run import ForeignStates
    from fastsft.trainer.planner import Planner
    from fastsft.trainer.setup import Setup


class StepRows(NamedTuple):
    """Rows of one step: a native data set, and the plan that assigns its rows to ranks and micro-batches.

    input_tokens: token count of the step for include_num_input_tokens_seen. padded_tokens: token count of
    the step's rows with their padding. padded_length: token count of the longest padded row.
    """

    native: _C.TokenDataset
    plan: _C.GroupPlan
    input_tokens: int
    padded_tokens: int
    padded_length: int


class StepBatch(NamedTuple):
    """One optimizer step: the rows, the micro-batch count, and the position in the run.

    epoch_after: epochs that are done after the step, as a fraction such as 1.25. ends_epoch: True
    for the last step of an epoch.
    """

    rows: StepRows
    num_micro_batches: int
    epoch_after: float
    ends_epoch: bool


class Batches:
    """The source of a run's steps, epoch by epoch. A resumed run may begin within an epoch."""

    def __init__(self, setup: Setup, planner: Planner, reader: RowReader, state: TrainerState) -> None:
        self._setup, self._planner, self._rows, self._state = setup, planner, reader, state
        self._reader: BatchReader | None = None  # None for native rows
        self._reads: EpochReads | None = None  # the row stream of the running epoch; None for native rows
        self._position: ReadPosition | None = None
        self._foreign: ForeignStates | None = None
        self._source: _C.StepSource | None = None
        self._is_restored = False  # True from `begin` with random states until the first epoch is opened
        self.tokens_read: float | None = None  # the run's token count, for include_tokens_per_second

    def open_reader(self) -> None:
        """Open a reader of train_dataset if its rows are not native.

        With include_tokens_per_second, also count the tokens that the run will read.
        """
        self._reader, self.tokens_read = None, None
        if not self._planner.rows.is_read:
            return
        self._reader = self._rows.training_reader()
        if self._setup.args.include_tokens_per_second:
            self.tokens_read = count_tokens(self._setup.args, self._reader, self._planner.plan.max_steps)

    def begin(self, states: dict[str, Any] | None, foreign: ForeignStates | None) -> None:
        """Restore a checkpoint's random states, since callbacks may have drawn numbers after the resume.

        states: random states of a fastsft checkpoint, or None. foreign: random states of a transformers
        checkpoint, or None.
        """
        self._foreign, self._position, self._is_restored = foreign, None, states is not None
        if states is None:
            return
        RandomState.from_json(states).set()
        reading = states.get("reading")
        if reading is not None:
            ahead = reading["ahead"] and RandomState.from_json(reading["ahead"])
            self._position = ReadPosition(RandomState.from_json(reading["epoch"]), ahead)

    def position(self) -> ReadPosition | None:
        """Return the random states with which a resumed run can read the prefetched rows once more.

        None if the rows are native.
        """
        return None if self._reads is None else self._reads.position()

    def tell_epoch(self, epoch: int) -> None:
        """Call the data set's `set_epoch`, if there is such a method, when accelerate would call it."""
        if self._reader is not None:
            self._reader.tell_epoch(epoch)

    def epoch(self, epoch: int, first: int, phase: Callable[[], str]) -> Iterator[StepBatch]:
        """Yield the steps of `epoch` from step `first` on. Collective.

        phase: function that returns the name of the next step's deadline. ValueError if the length of the
        data set has changed.
        """
        steps, args, plan = self._open_epoch(epoch, first), self._setup.args, self._planner.plan
        for step in range(first, plan.steps_per_epoch):
            with deadline(args, phase()):
                rows = steps.take(step)
            self._set_foreign_states()
            groups = steps.groups
            yield StepBatch(
                rows, groups.size_of(step), epoch + groups.done_after(step) / plan.micro_batches,
                step + 1 == plan.steps_per_epoch,
            )  # fmt: skip

    def end(self) -> None:
        """Stop reading rows at the run's end, and end all worker processes."""
        reader, self._reader, self._source = self._reader, None, None
        self._close_epoch()
        if reader is not None:
            reader.close()

    def _open_epoch(self, epoch: int, first: int) -> NativeEpoch | ReadEpoch:
        setup, args = self._setup, self._setup.args
        self._close_epoch()
        goes_on, self._is_restored = self._is_restored and first > 0, False
        self._place_foreign(epoch, first)
        rows = self._rows_now(epoch)
        cost, budget = setup.model.conversation_cost(), self._planner.token_budget
        if not rows.is_read:
            if self._source is None:
                self._source = step_source(args, rows, budget, cost)
            return NativeEpoch(args, rows, epoch, self._source, goes_on=goes_on)
        groups = EpochGroups(args, rows, epoch, None)
        position, self._position = self._position if first else None, None
        skip = first * args.gradient_accumulation_steps
        if args.dataloader_num_workers:  # the worker processes forked below get a copy of the model
            setup.model.refresh()
        agreement = AllOrNone("reading the data")  # covers the reader's first batch, which is read here
        reader = self._reader
        assert reader is not None  # set by `open_reader` if rows.is_read
        self._reads = reads = agreement.attempt(lambda: reader.read(skip, position))
        agreement.settle(None)
        assert reads is not None
        return ReadEpoch(setup, self._planner, groups, reads, rows.rules)

    def _close_epoch(self) -> None:
        reads, self._reads = self._reads, None
        if reads is not None and not self._setup.args.dataloader_persistent_workers:
            reads.close()

    def _set_foreign_states(self) -> None:
        """Set the random states of a transformers checkpoint, after the rows of the first step are read."""
        foreign, self._foreign = self._foreign, None
        if foreign is not None and foreign.states is not None:
            foreign.states.set()

    def _place_foreign(self, epoch: int, first: int) -> None:
        """Set the random generators to the state before the row order of `epoch` is drawn.

        Does nothing unless the run resumes from a transformers checkpoint.
        """
        if self._foreign is None:
            return
        if first:
            EarlierDraws(self._setup, self._planner, self._state).draw(epoch, self._foreign.states)
        else:
            self._set_foreign_states()

    def _rows_now(self, epoch: int) -> TokenRows:
        """Return the planned rows. If a script has changed fastsft's data set, read it item by item."""
        rows, args = self._planner.rows, self._setup.args
        # Persistent worker processes keep a copy of the data set from the first epoch and see no changes.
        copied = args.dataloader_persistent_workers and self._source is not None
        looked_at = not rows.is_read and not copied
        changed = looked_at and untouched_rows(rows.source, label=False) is not rows.native
        if looked_at and any(launcher.gather_objects(changed)):
            rows = self._planner.read_by_item()
            self.open_reader()
            self.tell_epoch(epoch)
        if rows.is_read and len(rows.source) != len(rows):
            raise ValueError(
                f"Trainer.train_dataset: expected {len(rows)} rows as when train() began, got "
                f"{len(rows.source)}; change their number before train()"
            )
        return rows


class NativeEpoch:
    """The steps of one epoch over native rows.

    source: result of `step_source`. goes_on: True if the random states were restored from within this epoch,
    in which the seed of the data loader was drawn already.
    """

    def __init__(
        self,
        args: TrainingArguments,
        rows: TokenRows,
        epoch: int,
        source: _C.StepSource,
        *,
        goes_on: bool = False,
    ) -> None:
        self._args, self._rows = args, rows
        self.groups = EpochGroups(args, rows, epoch, source)
        self._taken: int | None = None
        if not goes_on:
            draw_loader_seed()

    def take(self, step: int) -> StepRows:
        """Return the rows of `step`. ValueError if a script has changed the data set meanwhile."""
        # With workers, transformers' loader would read the workers' own copy, which shows no changes.
        if not self._args.dataloader_num_workers:
            self._rows.take(self._read_by(step))
        plan, length = self.groups.plan(step), self._rows.padded_length
        is_counted = self._args.include_num_input_tokens_seen != "no"
        tokens = self.groups.input_tokens(step) if is_counted else 0
        assert self._rows.native is not None  # else the epoch is a ReadEpoch
        return StepRows(self._rows.native, plan, tokens, plan.num_conversations * length, length)

    def _read_by(self, step: int) -> list[int]:
        """Return the rows that transformers' data loader reads on this rank during `step`.

        The loader is one batch ahead of the step.
        """
        rank, groups = self._args.data_parallel_rank, self.groups
        batches = groups.reference(step)[rank]
        if self._taken == step - 1:
            batches = batches[1:]
        self._taken = step
        if groups.size_of(step + 1) > 0:
            batches = [*batches, groups.reference(step + 1)[rank][0]]
        return [row for batch in batches for row in batch]


class ReadEpoch:
    """The steps of one epoch whose rows are read from the data set, one step after the other."""

    def __init__(
        self, setup: Setup, planner: Planner, groups: EpochGroups, reads: EpochReads, rules: ItemRules | None
    ) -> None:
        self._setup, self._planner, self.groups, self._reads, self._rules = (
            setup, planner, groups, reads, rules,
        )  # fmt: skip

    def take(self, step: int) -> StepRows:
        """Return the rows of `step`. Collective. The reader also fetches the next batch.

        ValueError names a faulty row.
        """
        setup, args = self._setup, self._setup.args
        count = self.groups.size_of(step)
        batches = gather_batches(lambda: [self._reads.take() for _ in range(count)])
        native, numbers = join_batches(batches, self._rules)
        check_ids(native, numbers, setup.engine.vocab_size)
        setup.model.check_rows(native, numbers)
        lengths = native.lengths()
        longest = int(np.argmax(lengths))
        self._planner.make_room(numbers[longest], int(lengths[longest]))
        cost = setup.model.conversation_cost()
        plan = single_step(args, native, count, self._planner.token_budget, cost)
        widths = [(len(batch.items), batch.width) for ranks in batches for batch in ranks]
        padded = sum(rows * width for rows, width in widths)
        seen = {"no": 0, "non_padding": int(lengths.sum())}
        tokens = seen.get(str(args.include_num_input_tokens_seen), padded)
        return StepRows(native, plan, tokens, padded, max(width for _, width in widths))


_RUNTIME = "_runtime"  # suffix of a metric that every evaluation logs


class EarlierDraws:
    """The random draws of a transformers run before it saved its checkpoint (docs/checkpoint.md).

    If the checkpoint was saved within an epoch, these draws determine which rows of that epoch remain.
    """

    def __init__(self, setup: Setup, planner: Planner, state: TrainerState) -> None:
        self._setup, self._planner, self._state = setup, planner, state

    def draw(self, epoch: int, saved: RandomState | None) -> None:
        """Replay all draws that the transformers run made before it drew the row order of `epoch`.

        The draws come from torch's global generator. Does nothing without --group_by_length. Prints a warning
        if the checkpoint's random states `saved` are None or do not match the draws: the row order is then
        unknown.
        """
        if self._setup.args.train_sampling_strategy != "group_by_length":
            return
        for earlier in range(epoch):
            self._draw_epoch(earlier)
        if saved is None:
            _tell_unknown(epoch, "this checkpoint has no random states for this number of ranks")
        elif epoch and not self._leads_to(epoch, saved):
            _tell_unknown(
                epoch, "the run of this checkpoint drew other random numbers than those of the order"
            )

    def _leads_to(self, epoch: int, saved: RandomState) -> bool:
        """True if the draws of `epoch` end in the generator state `saved`. Leaves the generator unchanged."""
        begin = torch.get_rng_state()
        self._draw_epoch(epoch)
        drawn = torch.get_rng_state()
        torch.set_rng_state(begin)
        return torch.equal(drawn, saved.torch)

    def _draw_epoch(self, epoch: int) -> None:
        """Draw the row order of `epoch`, and the row orders of the evaluations that were logged in it."""
        _draw_order(len(self._planner.rows))
        for step, size in self._evaluations():
            if (step - 1) // self._planner.plan.steps_per_epoch == epoch:
                _draw_order(size)

    def _evaluations(self) -> Iterator[tuple[int, int]]:
        """Yield the step and the row count for each logged evaluation."""
        given = self._setup.eval_dataset
        for entry in self._state.log_history:
            for key in entry:
                if key.startswith("eval_") and key.endswith(_RUNTIME):
                    name = key.removeprefix("eval_").removesuffix(_RUNTIME)
                    dataset = given.get(name) if isinstance(given, Mapping) else given
                    if isinstance(dataset, Sized):
                        yield entry["step"], len(dataset)


def _tell_unknown(epoch: int, why: str) -> None:
    tell(
        f"resuming within epoch {epoch + 1} with --group_by_length: {why}, so which rows are left is not "
        "known, and some may come twice in this epoch or not at all; a checkpoint of the end of an epoch has "
        "each row once"
    )


def _draw_order(size: int) -> None:
    """Draw the same random numbers as a data loader with `size` rows: its seed and its permutation."""
    draw_loader_seed()
    torch.randperm(size)
