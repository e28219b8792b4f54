"""The evaluations of a Trainer (docs/spec/trainer_semantics.md, section 13)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.data.batch_reads import BatchReader, draw_loader_seed
from fastsft.data.collators import Collation
from fastsft.data.token_rows import TokenRows
from fastsft.ranks import process_group as launcher
from fastsft.runtime.timeouts import deadline
from fastsft.trainer.agreed_inputs import agree_on_rows
from fastsft.trainer.deciding_metrics import of_first_rank
from fastsft.trainer.evaluation import evaluation_loss, exact_loss, no_loss
from fastsft.trainer.evaluation_rows import EvaluationRows, StoredRows, read_evaluation
from fastsft.trainer.fixed_arguments import FixedArguments
from fastsft.trainer.model_outputs import check_outputs
from fastsft.trainer.prediction import (
    ComputeMetrics,
    EvalPrediction,
    Predictor,
    Preprocess,
    as_number,
    check_named,
    check_predictions,
    writable,
)
from fastsft.trainer.row_notices import finds_packed
from fastsft.trainer.trainer_plan import check_not_training

if TYPE_CHECKING:
    from fastsft.model.causal_lm import CausalLM
    from fastsft.reporting.progress import Progress
    from fastsft.trainer.nested_outputs import Nested


class PredictionOutput(NamedTuple):
    """Result of `Trainer.predict`, under transformers' names; arrays as prediction.py has them.

    `predictions` and `label_ids` are None with --prediction_loss_only.
    """

    predictions: Nested | None
    label_ids: Nested | None
    metrics: dict[str, float]


class TrainerEvaluation:
    """Evaluates the model as it is; a part of Trainer."""

    args: TrainingArguments
    fixed_arguments: FixedArguments
    progress: Progress
    model: CausalLM
    fire: Callable[..., None]
    log: Callable[..., None]
    _at_batch: Callable[[], None]
    _take_changes: Callable[..., None]
    _read_rows: Callable[..., TokenRows]
    _evaluation_reader: Callable[[object, str | None, bool], BatchReader]
    _collation: Callable[..., Collation]
    is_in_train: bool
    _build_time: float
    _has_trained: bool
    model_preparation_time: float | None = None
    ignore_keys_for_eval: Sequence[str] | None = None  # of the running or last train()
    compute_metrics: ComputeMetrics | None
    evaluated_rows: TokenRows | None
    preprocess_logits_for_metrics: Preprocess | None

    if TYPE_CHECKING:  # of TrainerModel

        @property
        def engine(self) -> _C.Engine: ...

    @property
    def eval_dataset(self) -> object:
        """The data to evaluate on, as they were given: a set, several by name, or None.

        Setting them reads their rows; collective. ValueError for foreign ids, while `train` runs, and where
        compute_metrics needs more logits than fit into memory; the old ones stay.
        """
        return self._eval_dataset

    @eval_dataset.setter
    def eval_dataset(self, dataset: object) -> None:
        check_not_training(self, "eval_dataset")
        self._set_evaluation(dataset)

    def _set_evaluation(self, dataset: object) -> None:
        rows: TokenRows | dict[str, TokenRows] | None = None
        if isinstance(dataset, Mapping):
            rows = {name: self._rows_of(item) for name, item in dataset.items()}
        elif dataset is not None:
            rows = self._rows_of(dataset)
        self._check_predictions(rows)
        self.eval_rows, self._eval_dataset = rows, dataset

    def _check_predictions(self, rows: TokenRows | dict[str, TokenRows] | None) -> None:
        """ValueError when compute_metrics would get more than fits into memory; collective."""
        if not self._wants_predictions() or self.preprocess_logits_for_metrics is not None:
            return
        for item in rows.values() if isinstance(rows, dict) else [rows]:
            if item is not None:
                check_predictions(item, self.engine.vocab_size)

    def _wants_predictions(self) -> bool:
        return self.compute_metrics is not None and not self.args.prediction_loss_only

    def _rows_of(self, dataset: object) -> TokenRows:
        """Collective: all ranks evaluate the same."""
        rows = self._read_rows(dataset, needs_labels=False)
        agree_on_rows("the data of an evaluation", dataset, rows)
        rows.check_for(self.model, self.engine.vocab_size, training=False)
        return rows

    def evaluate(
        self,
        eval_dataset: object = None,
        ignore_keys: Sequence[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Loss on `eval_dataset` (default: the trainer's), logged; collective. ValueError without one.

        With compute_metrics also what it makes of the predictions, unless --prediction_loss_only.
        eval_dataset: a data set, several in a dictionary, or the name of one of the trainer's. Each of
        several is a call of this method, as in transformers, and is logged under `<prefix>_<name>`; all
        metrics are returned. Rows without labels have no loss. ignore_keys: outputs that predictions do not
        have there.
        Arguments that were changed since the Trainer was made count, or are refused as by `train`.
        """
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(chosen, Mapping):
            metrics: dict[str, float] = {}
            for name, named in chosen.items():
                given = name if eval_dataset is None else named
                prefix = f"{metric_key_prefix}_{name}"
                metrics.update(self.evaluate(given, ignore_keys=ignore_keys, metric_key_prefix=prefix))
            return metrics
        self._take_model("evaluate")
        if self._wants_predictions():
            check_outputs(self.model.config, ignore_keys, "Trainer.evaluate")
        name = eval_dataset if isinstance(eval_dataset, str) else "eval"
        wanted = self._wants_predictions()
        rows = self._read_now(self._rows_to_evaluate(eval_dataset), name, keeps_padding=wanted)
        return self._evaluate(rows, metric_key_prefix)

    def evaluate_in_training(self) -> dict[str, float]:
        """`evaluate` as `train` calls it, which a derived class may have overridden."""
        keys = self.ignore_keys_for_eval
        return self.evaluate() if keys is None else self.evaluate(ignore_keys=keys)

    def predict(
        self, test_dataset: object, ignore_keys: Sequence[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predictions, labels and metrics of `test_dataset`, not logged; collective.

        Predictions are the logits of all rows, or what preprocess_logits_for_metrics makes of them; with
        --prediction_loss_only there are none. Rows without labels have predictions alone. ValueError when
        they do not fit into memory. For replies, load the saved model where text is generated. ignore_keys:
        as `evaluate`.
        """
        self._take_model("predict")
        wanted = not self.args.prediction_loss_only
        if wanted:
            check_outputs(self.model.config, ignore_keys, "Trainer.predict")
        rows = self._read_now(self._rows_of(test_dataset), None, keeps_padding=wanted)
        metrics, predicted = self._metrics(rows, metric_key_prefix, wanted)
        self.fire("on_predict", metrics=metrics)
        if predicted is None:
            return PredictionOutput(None, None, metrics)
        return PredictionOutput(predicted.predictions, predicted.label_ids, metrics)

    def _take_model(self, method: str) -> None:
        """Take over what a script has changed; in callbacks of `on_train_end`, of the weights alone."""
        if not self.is_in_train:
            self._take_changes(method)
        elif self.model.engine_leads:
            self.model.check_unaltered(f"Trainer.{method}")
            self.model.take_written_weights()
        elif not self.model.engine_leads:
            self.model.check_as_given(f"Trainer.{method}", False)
            self.model.take_changed_weights()

    def _rows_to_evaluate(self, dataset: object) -> TokenRows:
        if isinstance(dataset, str):
            sets = self.eval_dataset if isinstance(self.eval_dataset, Mapping) else {}
            if dataset not in sets:
                known = ", ".join(sets) or "none"
                raise ValueError(f"evaluate: no evaluation data is called {dataset}; known names: {known}")
            rows = self.eval_rows.get(dataset) if isinstance(self.eval_rows, dict) else None
            # A script may have put another set under the name since.
            return rows if rows is not None and rows.source is sets[dataset] else self._rows_of(sets[dataset])
        if dataset is not None:
            return self._rows_of(dataset)
        if not isinstance(self.eval_rows, TokenRows):
            raise ValueError("Trainer: evaluation requires an eval_dataset; give --eval_data_path")
        return self.eval_rows

    def _read_now(self, rows: TokenRows, name: str | None, *, keeps_padding: bool) -> TokenRows:
        """The rows as they are now: read, where they are not native. Arguments: of `_evaluation_reader`."""
        self.evaluated_rows = rows  # which callbacks see
        if not all(launcher.gather_objects(rows.is_current())):
            rows = self._rows_of(rows.source)
        if not rows.is_read:
            self.model.set_mode(training=False)
            draw_loader_seed()
            if not self.args.dataloader_num_workers:
                rows.note_read(_read_here(self.args, len(rows)))
            return rows
        with deadline(self.args, "evaluation"):
            reader = self._evaluation_reader(rows.source, name, keeps_padding)
            self.model.set_mode(training=False)
            if self.args.dataloader_num_workers:
                self.model.refresh()
            return read_evaluation(self.args, reader, rows, self.model)

    def _evaluate(self, rows: TokenRows, prefix: str) -> dict[str, float]:
        metrics, _ = self._metrics(rows, prefix, self._wants_predictions())
        saves = self.is_in_train and self.args.save_strategy != "no"  # the next checkpoint would hold them
        kept = writable(metrics, must=saves)
        logged = dict(kept)
        self.log(logged)  # which adds to them, and callbacks may
        metrics.update({name: value for name, value in logged.items() if value is not kept.get(name)})
        with of_first_rank(self.args, metrics) if self.is_in_train else nullcontext():
            self.fire("on_evaluate", metrics=metrics)
        return metrics

    def _metrics(
        self, rows: TokenRows, prefix: str, with_predictions: bool
    ) -> tuple[dict[str, float], EvalPrediction | None]:
        """Loss, own metrics and rates of `rows`, and the predictions if wanted."""
        started = time.monotonic()
        with (
            deadline(self.args, "evaluation"),
            self.progress.phase("evaluating", f"{rows.num_samples:,} rows") as show,
        ):

            def batch_done(done: int, total: int) -> None:
                if predictor is not None:
                    predictor.step(done - 1)
                show(done, total)
                self.fire("on_prediction_step")
                self._at_batch()

            of_labels = exact_loss if self.args.eval_loss == "exact" else evaluation_loss
            compute = of_labels if rows.has_labels else no_loss
            packed = finds_packed(self.model, self.args, training=False)
            predictor = self._predictor(rows, packed) if with_predictions else None
            loss = compute(
                self.engine, rows, self.fixed_arguments.over(self.args), batch_done, find_packed=packed
            )
            predicted = None if predictor is None else predictor.result()
        own = {**self._preparation(prefix), **self._own_metrics(predicted, prefix)}
        runtime = time.monotonic() - started
        steps = _C.micro_batch_count(rows.num_samples, self.args.eval_batch_size, self.args.world_size)
        rates = {
            f"{prefix}_runtime": round(runtime, 4),
            f"{prefix}_samples_per_second": round(rows.num_samples / max(runtime, 1e-9), 3),
            f"{prefix}_steps_per_second": round(steps / max(runtime, 1e-9), 3),
        }
        found = {} if loss is None else {f"{prefix}_loss": loss}
        return {**found, **own, **rates}, predicted

    def _preparation(self, prefix: str) -> dict[str, float]:
        """Seconds that the engine was built in, once an evaluation came before the first `train`."""
        if not self._has_trained:
            self.model_preparation_time = self._build_time
        seconds = self.model_preparation_time
        return {} if seconds is None else {f"{prefix}_model_preparation_time": seconds}

    def _predictor(self, rows: TokenRows, find_packed: bool) -> Predictor:
        hook, module = self.preprocess_logits_for_metrics, getattr(self.model, "module", None)
        if hook is None:
            check_predictions(rows, self.engine.vocab_size)
        batches: EvaluationRows | StoredRows
        if isinstance(rows, EvaluationRows):
            batches = rows
        else:
            collation = self._collation(rows.source, training=False, keeps_padding=True)
            batches = StoredRows(rows, _batches_here(self.args, len(rows)), collation)
        dtype = torch.float32 if self.args.bf16 else getattr(module, "dtype", torch.float32)
        return Predictor(
            self.engine, batches, rows.num_samples, self.args, hook, dtype=dtype,
            find_packed=find_packed,
        )  # fmt: skip

    def _own_metrics(self, predicted: EvalPrediction | None, prefix: str) -> dict[str, float]:
        """The metrics that compute_metrics makes of the predictions, as plain numbers under the prefix."""
        if predicted is None or predicted.label_ids is None or self.compute_metrics is None:
            return {}
        found = self.compute_metrics(predicted)
        check_named(found)
        return {
            name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": as_number(value)
            for name, value in found.items()
        }


def _batches_here(args: TrainingArguments, num_rows: int) -> list[npt.NDArray[np.int64]]:
    """Rows that a loader of this rank reads in an evaluation, batch by batch."""
    order = np.arange(num_rows, dtype=np.int64)
    return _C.rank_micro_batches(
        order, args.eval_batch_size, args.process_index, args.world_size, args.dataloader_drop_last
    )


def _read_here(args: TrainingArguments, num_rows: int) -> npt.NDArray[np.int64]:
    """The same in one."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *_batches_here(args, num_rows)])
