"""Evaluations and predictions of a Trainer (docs/spec/trainer_semantics.md, section 13)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.data.batch_reads import draw_loader_seed
from fastsft.data.token_rows import TokenRows
from fastsft.ranks import process_group as launcher
from fastsft.runtime.timeouts import deadline
from fastsft.trainer.agreed_inputs import agree_on_rows
from fastsft.trainer.evaluation import evaluation_loss, exact_loss, no_loss
from fastsft.trainer.events import Events, of_first_rank
from fastsft.trainer.prediction import (
    EvalPrediction,
    Predictor,
    as_number,
    check_named,
    check_outputs,
    check_predictions,
    writable,
)
from fastsft.trainer.row_notices import finds_packed
from fastsft.trainer.rows import EvaluationRows, RowReader, StoredRows, check_context, read_evaluation

if TYPE_CHECKING:
    from fastsft.reporting.progress import Progress
    from fastsft.trainer.prediction import Nested
    from fastsft.trainer.setup import Setup


class PredictionOutput(NamedTuple):
    """Result of `Trainer.predict`, with transformers' field names (shapes: prediction.py).

    `predictions` and `label_ids` are None with --prediction_loss_only.
    """

    predictions: Nested | None
    label_ids: Nested | None
    metrics: dict[str, float]


class Evaluator:
    """The part of a Trainer that computes loss, predictions and metrics with the current weights.

    rows: the rows of eval_dataset, by name if there are several data sets. evaluated_rows: the rows of the
    running or last evaluation. after_batch: the function of `calling_after_batches`, if any.
    """

    def __init__(
        self,
        setup: Setup,
        reader: RowReader,
        events: Events,
        progress: Progress,
        log: Callable[[dict[str, float]], None],
        preparation_time: float,
    ) -> None:
        """log: the method Trainer.log. preparation_time: time that building the engine took [s]."""
        self._setup, self._reader, self._events, self._progress = setup, reader, events, progress
        self._log, self._preparation_time = log, preparation_time
        self._tells_preparation = False  # True once an evaluation has come before the first train()
        self.after_batch: Callable[[], None] = lambda: None
        self.rows: TokenRows | dict[str, TokenRows] | None = None
        self.evaluated_rows: TokenRows | None = None

    def read_rows(self, dataset: object) -> None:
        """Read the rows of eval_dataset. Collective. A ValueError leaves the old rows in use."""
        rows: TokenRows | dict[str, TokenRows] | None = None
        if isinstance(dataset, Mapping):
            rows = {name: self._rows_of(item) for name, item in dataset.items()}
        elif dataset is not None:
            rows = self._rows_of(dataset)
        self.check_memory(rows)
        self.rows = rows

    def check_memory(self, rows: TokenRows | dict[str, TokenRows] | None) -> None:
        """Raise ValueError if the logits for compute_metrics do not fit into memory. Collective."""
        setup = self._setup
        if not setup.wants_predictions or setup.preprocess_logits is not None:
            return
        for item in rows.values() if isinstance(rows, dict) else [rows]:
            if item is not None:
                check_predictions(item, setup.engine.vocab_size)

    def evaluate(self, dataset: object, ignore_keys: Sequence[str] | None, prefix: str) -> dict[str, float]:
        """Evaluate one data set, or eval_dataset if it is None, and log the metrics. Collective."""
        setup = self._setup
        if setup.wants_predictions:
            check_outputs(setup.model.config, ignore_keys, "Trainer.evaluate")
        name = dataset if isinstance(dataset, str) else "eval"
        wanted = setup.wants_predictions
        rows = self._read_now(self._rows_to_evaluate(dataset), name, keeps_padding=wanted)
        metrics, _ = self._metrics(rows, prefix, wanted)
        # Checkpoints store logged metrics, so metrics that JSON cannot hold are an error if any are saved.
        saves = setup.is_training and setup.args.save_strategy != "no"
        kept = writable(metrics, must=saves)
        logged = dict(kept)
        self._log(logged)  # adds the epoch to `logged`; callbacks may add or change entries
        metrics.update({name: value for name, value in logged.items() if value is not kept.get(name)})
        with of_first_rank(setup.args, metrics) if setup.is_training else nullcontext():
            self._events.fire("on_evaluate", metrics=metrics)
        return metrics

    def predict(self, dataset: object, ignore_keys: Sequence[str] | None, prefix: str) -> PredictionOutput:
        """Predict all rows of `dataset`. Collective."""
        wanted = not self._setup.args.prediction_loss_only
        if wanted:
            check_outputs(self._setup.model.config, ignore_keys, "Trainer.predict")
        rows = self._read_now(self._rows_of(dataset), None, keeps_padding=wanted)
        metrics, predicted = self._metrics(rows, prefix, wanted)
        self._events.fire("on_predict", metrics=metrics)
        if predicted is None:
            return PredictionOutput(None, None, metrics)
        return PredictionOutput(predicted.predictions, predicted.label_ids, metrics)

    @contextmanager
    def calling_after_batches(self, function: Callable[[], None]) -> Iterator[None]:
        """Call `function` after each batch of an evaluation while the context is open."""
        self.after_batch = function
        try:
            yield
        finally:
            self.after_batch = lambda: None

    def _rows_of(self, dataset: object) -> TokenRows:
        """Return the rows of `dataset`, after a check that they are the same on all ranks. Collective."""
        rows = self._reader.rows_of(dataset, needs_labels=False)
        agree_on_rows("the data of an evaluation", dataset, rows)
        rows.check_for(self._setup.model, self._setup.engine.vocab_size, training=False)
        return rows

    def _rows_to_evaluate(self, dataset: object) -> TokenRows:
        if isinstance(dataset, str):
            given = self._setup.eval_dataset
            sets = given if isinstance(given, Mapping) else {}
            if dataset not in sets:
                known = ", ".join(sets) or "none"
                way = "give the rows themselves, or eval_dataset={name: rows} to the Trainer"
                raise ValueError(
                    f"evaluate: no evaluation data is called {dataset}; known names: {known}; {way}"
                )
            rows = self.rows.get(dataset) if isinstance(self.rows, dict) else None
            # A script may have replaced the named data set after its rows were read.
            return rows if rows is not None and rows.source is sets[dataset] else self._rows_of(sets[dataset])
        if dataset is not None:
            return self._rows_of(dataset)
        if not isinstance(self.rows, TokenRows):
            raise ValueError(
                "Trainer: evaluation requires an eval_dataset; give --eval_data_path or --eval_split"
            )
        return self.rows

    def _read_now(self, rows: TokenRows, name: str | None, *, keeps_padding: bool) -> TokenRows:
        """Return `rows`, updated if their data set changed. Non-native rows are read here. Collective.

        name, keeps_padding: as in `evaluation_reader`.
        """
        setup, args = self._setup, self._setup.args
        self.evaluated_rows = rows  # callbacks get a view of these rows as eval_dataloader
        if not all(launcher.gather_objects(rows.is_current())):
            rows = self._rows_of(rows.source)
        check_context(args, rows)
        if not rows.is_read:
            setup.model.set_mode(training=False)
            draw_loader_seed()
            if not args.dataloader_num_workers:
                batches = _batches_of_rank(args, len(rows))
                rows.note_read(np.concatenate([np.zeros(0, dtype=np.int64), *batches]))
            return rows
        with deadline(args, "evaluation"):
            reader = self._reader.evaluation_reader(rows.source, name, keeps_padding=keeps_padding)
            setup.model.set_mode(training=False)
            if args.dataloader_num_workers:
                setup.model.refresh()
            return read_evaluation(setup, reader, rows)

    def _metrics(
        self, rows: TokenRows, prefix: str, with_predictions: bool
    ) -> tuple[dict[str, float], EvalPrediction | None]:
        """Return the metrics of `rows` (loss, compute_metrics, rates), and the predictions if wanted."""
        started, args = time.monotonic(), self._setup.args
        with (
            deadline(args, "evaluation"),
            self._progress.phase("evaluating", f"{rows.num_samples:,} rows") as show,
        ):

            def batch_done(done: int, total: int) -> None:
                if predictor is not None:
                    predictor.step(done - 1)
                show(done, total)
                self._events.fire("on_prediction_step")
                self.after_batch()

            by_labels = exact_loss if args.eval_loss == "exact" else evaluation_loss
            compute = by_labels if rows.has_labels else no_loss
            packed = finds_packed(self._setup.model, args, training=False)
            predictor = self._predictor(rows, packed) if with_predictions else None
            loss = compute(self._setup.engine, rows, self._setup.step_args, batch_done, find_packed=packed)
            predicted = None if predictor is None else predictor.result()
        own = {**self._preparation(prefix), **self._own_metrics(predicted, prefix)}
        runtime = time.monotonic() - started
        steps = _C.micro_batch_count(rows.num_samples, args.eval_batch_size, args.data_parallel_size)
        rates = {
            f"{prefix}_runtime": round(runtime, 4),
            f"{prefix}_samples_per_second": round(rows.num_samples / max(runtime, 1e-9), 3),
            f"{prefix}_steps_per_second": round(steps / max(runtime, 1e-9), 3),
        }
        losses = {} if loss is None else {f"{prefix}_loss": loss}
        return {**losses, **own, **rates}, predicted

    def _preparation(self, prefix: str) -> dict[str, float]:
        """Return the metric for the preparation time, which transformers logs if nothing was trained yet."""
        self._tells_preparation |= not self._setup.has_trained
        seconds = self._preparation_time
        return {f"{prefix}_model_preparation_time": seconds} if self._tells_preparation else {}

    def _predictor(self, rows: TokenRows, find_packed: bool) -> Predictor:
        setup, args = self._setup, self._setup.args
        if args.context_parallel_size > 1:
            raise ValueError(
                f"--context_parallel_size {args.context_parallel_size}: no rank has the logits of whole "
                "rows, which compute_metrics and predict need; leave them out, or evaluate without it"
            )
        hook, module = setup.preprocess_logits, getattr(setup.model, "module", None)
        if hook is None:
            check_predictions(rows, setup.engine.vocab_size)
        batches: EvaluationRows | StoredRows
        if isinstance(rows, EvaluationRows):
            batches = rows
        else:
            collation = self._reader.collation(rows.source, training=False, keeps_padding=True)
            batches = StoredRows(rows, _batches_of_rank(args, len(rows)), collation)
        dtype = torch.float32 if args.bf16 else getattr(module, "dtype", torch.float32)
        return Predictor(
            setup.engine, batches, rows.num_samples, args, hook, dtype=dtype, find_packed=find_packed
        )

    def _own_metrics(self, predicted: EvalPrediction | None, prefix: str) -> dict[str, float]:
        """Return the results of compute_metrics as plain numbers, with the prefix in their names."""
        compute = self._setup.compute_metrics
        if predicted is None or predicted.label_ids is None or compute is None:
            return {}
        metrics = compute(predicted)
        check_named(metrics)
        return {
            name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": as_number(value)
            for name, value in metrics.items()
        }


def _batches_of_rank(args: TrainingArguments, num_rows: int) -> list[npt.NDArray[np.int64]]:
    """Return the row numbers of each batch that this rank reads in an evaluation."""
    order = np.arange(num_rows, dtype=np.int64)
    return _C.rank_micro_batches(
        order,
        args.eval_batch_size,
        args.data_parallel_rank,
        args.data_parallel_size,
        args.dataloader_drop_last,
    )
