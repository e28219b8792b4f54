"""The rows of a run, epoch by epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastsft.data.batch_reads import ReadPosition
from fastsft.data.token_rows import TokenRows, untouched_rows
from fastsft.planning.run_plan import EpochGroups, step_source
from fastsft.ranks import process_group as launcher
from fastsft.ranks.agreement import Agreement
from fastsft.runtime.random_state import RandomState
from fastsft.trainer.foreign_rows import draw_earlier_epochs
from fastsft.trainer.step_rows import NativeEpoch, ReadEpoch, StepCut

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.checkpoint.saved_run import ForeignStates
    from fastsft.trainer.running import Running


class RunRows:
    """The rows of the run of `trainer`, which may be one that goes on from a checkpoint."""

    def __init__(self, trainer: Running) -> None:
        self._trainer = trainer
        self._position: ReadPosition | None = None
        self._foreign: ForeignStates | None = None
        self._source: _C.StepSource | None = None
        self._is_restored = False  # random states, for the epoch that is next

    def begin(self) -> None:
        """Random states as the checkpoint has them: what ran since may have drawn numbers."""
        states, self._trainer.resumed_states = self._trainer.resumed_states, None
        self._foreign, self._trainer.foreign_states = self._trainer.foreign_states, None
        self._position, self._is_restored = None, states is not None
        if states is None:
            return
        RandomState.from_json(states).set()
        reading = states.get("reading")
        if reading is not None:
            ahead = reading["ahead"] and RandomState.from_json(reading["ahead"])
            self._position = ReadPosition(RandomState.from_json(reading["epoch"]), ahead)

    def tell_epoch(self, epoch: int) -> None:
        """A data set that has `set_epoch` hears of `epoch` where accelerate tells it."""
        if self._trainer.train_reader is not None:
            self._trainer.train_reader.tell_epoch(epoch)

    def epoch(self, epoch: int, first: int) -> NativeEpoch | ReadEpoch:
        """The steps of `epoch` from step `first` on. ValueError for a data set of another length."""
        trainer = self._trainer
        self.close()
        goes_on, self._is_restored = self._is_restored and first > 0, False
        self._place_foreign(epoch, first)
        rows = self._rows_now(epoch)
        cost = trainer.model.conversation_cost()
        if not rows.is_read:
            if self._source is None:
                self._source = step_source(trainer.args, rows, trainer.token_budget, cost)
            return NativeEpoch(trainer.args, rows, epoch, self._source, goes_on=goes_on)
        groups = EpochGroups(trainer.args, rows, epoch, None)
        cut = StepCut(trainer.token_budget, cost, trainer.model, trainer.make_room)
        position, self._position = self._position if first else None, None
        skip = first * trainer.args.gradient_accumulation_steps
        if trainer.args.dataloader_num_workers:  # processes that are made here have a copy of the model
            trainer.model.refresh()
        agreement = Agreement("reading the data")  # the first batch is read here
        reader = trainer.train_reader
        assert reader is not None  # of rows that are read
        trainer.epoch_reads = reads = agreement.attempt(lambda: reader.read(skip, position))
        agreement.settle(None)
        assert reads is not None
        return ReadEpoch(trainer.args, groups, reads, cut, rows.rules)

    def step_taken(self) -> None:
        """Of the first step: set the states of transformers' checkpoint, now that its rows are read."""
        foreign, self._foreign = self._foreign, None
        if foreign is not None and foreign.states is not None:
            foreign.states.set()

    def close(self) -> None:
        """The epoch is over, or given up."""
        reads, self._trainer.epoch_reads = self._trainer.epoch_reads, None
        if reads is not None and not self._trainer.args.dataloader_persistent_workers:
            reads.close()

    def end(self) -> None:
        """The run is over: no worker process stays."""
        reader, self._trainer.train_reader = self._trainer.train_reader, None
        self.close()
        if reader is not None:
            reader.close()

    def _place_foreign(self, epoch: int, first: int) -> None:
        """Before an epoch's order is drawn. What is left of one has the order of its begin."""
        if self._foreign is None:
            return
        if first:
            draw_earlier_epochs(self._trainer, epoch, self._foreign.states)
        else:
            self.step_taken()

    def _rows_now(self, epoch: int) -> TokenRows:
        """Those that are planned with; the items, where a script has changed fastsft's own data set since."""
        trainer = self._trainer
        rows = trainer.train_rows
        # Worker processes that stay have the copy of the first epoch.
        copied = trainer.args.dataloader_persistent_workers and self._source is not None
        looked_at = not rows.is_read and not copied
        changed = looked_at and untouched_rows(rows.source, label=False) is not rows.native
        if looked_at and any(launcher.gather_objects(changed)):
            rows = trainer.train_rows = rows.as_items()
            trainer.open_train_reader()
            self.tell_epoch(epoch)
        if rows.is_read and len(rows.source) != len(rows):
            raise ValueError(
                f"Trainer.train_dataset: expected {len(rows)} rows as when train() began, got "
                f"{len(rows.source)}; change their number before train()"
            )
        return rows
