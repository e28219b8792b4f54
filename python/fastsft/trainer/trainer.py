"""A Trainer with the interface of transformers' (docs/spec/trainer_semantics.md, sections 5 to 18)."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from fastsft.arguments.from_transformers import as_arguments
from fastsft.callbacks.samples import SAMPLES
from fastsft.callbacks.state import TrainOutput
from fastsft.checkpoint.load import check_checkpoint
from fastsft.data.collators import only_stacks
from fastsft.lora.attach import as_trained_model
from fastsft.model.output_directory import prepare_output_directory
from fastsft.ranks import process_group as launcher
from fastsft.ranks.output_directory import run_lock
from fastsft.ranks.torchrun_job import starts_of_job
from fastsft.reporting.loss_reports import LossReports
from fastsft.reporting.progress import Progress
from fastsft.reporting.throughput import work_of
from fastsft.runtime.devices import use_device
from fastsft.runtime.given_types import explained_call
from fastsft.runtime.launch import script_may_run
from fastsft.runtime.timeouts import deadline
from fastsft.trackers.tracker import make_trackers
from fastsft.trainer import loop
from fastsft.trainer.agreed_inputs import agree_on_model, meet_for_trainer
from fastsft.trainer.compat.accelerator import check_accelerate_state
from fastsft.trainer.compat.guard import ScriptGuard, is_opened
from fastsft.trainer.compat.views import event_values
from fastsft.trainer.early_stopping import EarlyStoppingCallback
from fastsft.trainer.evaluator import Evaluator, PredictionOutput
from fastsft.trainer.events import DefaultFlow, Events
from fastsft.trainer.hub_uploads import HubUploads
from fastsft.trainer.planner import Planner
from fastsft.trainer.prediction import ComputeMetrics, Preprocess, check_outputs
from fastsft.trainer.preflight import (
    check_before_training,
    check_context_ranks,
    check_data,
    check_functions,
    check_given,
    check_metrics,
)
from fastsft.trainer.resume import checkpoint_to_resume, start
from fastsft.trainer.rows import RowReader
from fastsft.trainer.run import Run
from fastsft.trainer.samples import Samples, sample_tokenizer
from fastsft.trainer.setup import FixedArguments, seed_everything, use_log_level
from fastsft.trainer.surface import TrainerSurface
from fastsft.trainer.token_counter import rate_of_run

if TYPE_CHECKING:
    from fastsft.data.loaders import Collator


class Trainer(TrainerSurface):
    """The trainer of `model` on `train_dataset`. Parameters have the order of transformers' Trainer.

    model: a directory, a fastsft.CausalLM, a causal language model of transformers, or a PeftModel with LoRA
    around a transformers model. The last two have the trained weights when `train` returns
    (model/loaded_model.py, lora/given_model.py). peft_config: the LoraConfig of adapters to add to `model`. A
    LoraConfig that names its base model may also be passed as `model` itself (lora/attach.py).
    args: fastsft's TrainingArguments or transformers'.
    train_dataset, eval_dataset: data sets of FastChat-style items; eval_dataset may also be a dictionary of
    data sets by name, or None. data_collator: called with the batches that transformers would pass to a
    collator (data/collators.py). tokenizer or processing_class: saved with the weights.
    compute_metrics, preprocess_logits_for_metrics: used in evaluations (prediction.py).
    callbacks: instances or classes with the events of transformers' TrainerCallback.

    All ranks must construct a Trainer and call the same methods in the same order.
    ValueError for faults that would otherwise show up later, such as evaluation without data, or an
    output_dir that cannot be written. ValueError also for model_init, compute_loss_func, optimizers and
    overridden methods of the training step, which the engine cannot use.
    """

    @explained_call
    def __init__(
        self,
        model: object = None,
        args: object = None,
        data_collator: Collator | None = None,
        train_dataset: object = None,
        eval_dataset: object = None,
        processing_class: object = None,
        model_init: object = None,
        compute_loss_func: object = None,
        compute_metrics: ComputeMetrics | None = None,
        callbacks: Iterable[object] | None = None,
        optimizers: object = None,
        optimizer_cls_and_kwargs: object = None,
        preprocess_logits_for_metrics: Preprocess | None = None,
        *,
        tokenizer: object = None,
        peft_config: object = None,
    ) -> None:
        check_given(callbacks, tokenizer if processing_class is None else processing_class)
        setup, callbacks = self._setup, list(callbacks or ())
        needs_guard = script_may_run() or type(self) is not Trainer or callbacks or not is_opened(model, args)
        self._guard = ScriptGuard(self, setup) if needs_guard else None
        if self._guard is not None:
            self._guard.check_constructor(
                model_init=model_init, compute_loss_func=compute_loss_func,
                optimizers=optimizers, optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
            )  # fmt: skip
        setup.args = as_arguments(args)
        setup.fixed = FixedArguments(setup.args)
        self._meet(callbacks, train_dataset, eval_dataset, compute_metrics, preprocess_logits_for_metrics)
        only_stacks(data_collator)
        check_metrics(setup.args, compute_metrics)
        check_functions(
            data_collator=data_collator, preprocess_logits_for_metrics=preprocess_logits_for_metrics
        )
        check_data(train_dataset=train_dataset, eval_dataset=eval_dataset)
        setup.data_collator, setup.compute_metrics = data_collator, compute_metrics
        setup.preprocess_logits = preprocess_logits_for_metrics
        setup.train_dataset = train_dataset
        setup.tokenizer = tokenizer if processing_class is None else processing_class
        self._open_model(model, peft_config, eval_dataset)
        self._sample_tokenizer = sample_tokenizer(setup)
        self._build()
        self._attach(callbacks, eval_dataset)

    def _meet(self, callbacks: list[object], *given: object) -> None:
        """Meet the other ranks, and check that all have the same constructor arguments. Collective."""
        names = ("train_dataset", "eval_dataset", "compute_metrics", "preprocess_logits_for_metrics")
        with deadline(self.args, "init"):
            meet_for_trainer(self.args, callbacks, **dict(zip(names, given, strict=True)))

    def _open_model(self, model: object, peft_config: object, eval_dataset: object) -> None:
        """Open the model, and join the process groups on its device. Collective."""
        setup, args = self._setup, self.args
        is_training = setup.train_dataset is not None
        if self._guard is not None:
            self._guard.check_libraries(training=is_training)
        elif is_training:
            check_accelerate_state(args, "Trainer")
        setup.model = as_trained_model(model, peft_config, args.seed, args.engine)
        check_before_training(setup.model, args, eval_dataset)
        setup.model.check_as_given("Trainer", is_training)
        check_context_ranks(setup.model, args)
        use_device(str(args.device), args.tf32, args.full_determinism)
        use_log_level(args)
        with deadline(args, "init"):
            self._groups = launcher.join(
                args.ddp_timeout, str(args.device), args.node_size, args.context_parallel_size
            )
        setup.launched_by = starts_of_job()
        prepare_output_directory(setup.model.source_directory, args.output_dir or ".")

    def _build(self) -> None:
        """Read the data, plan steps and memory, and build the engine. Collective."""
        setup, args = self._setup, self.args
        self.uploads = HubUploads(setup, self._write_card) if args.push_to_hub else None
        seed_everything(args.seed)
        self._reader = RowReader(setup)
        self._planner = planner = Planner(setup, self._reader)
        planner.plan_first()
        agree_on_model(setup.model, setup.tokenizer)
        planner.compare()
        built = time.monotonic()
        setup.model.build(args, self._groups, planner.recompute, planner.chosen)
        self._build_time = round(time.monotonic() - built, 4)

    def _attach(self, callbacks: list[object], eval_dataset: object) -> None:
        """Add callbacks, trackers and reports, and read the evaluation data. Collective."""
        setup, args, planner = self._setup, self.args, self._planner
        has_data = setup.train_dataset is not None
        self.progress = Progress(args, work=None)
        self._events = events = Events(args, self._guard.around) if self._guard else Events(args)
        source = str(getattr(setup.model, "source_directory", ""))
        reports = [*make_trackers(args.report_to), LossReports(args.run_name or str(args.output_dir), source)]
        stopping = EarlyStoppingCallback.of_flags(args)
        for callback in (DefaultFlow(), *reports, *callbacks, *stopping, self.progress):
            events.add(callback)
        self._evaluator = Evaluator(
            setup, self._reader, events, self.progress, lambda logs: self.log(logs), self._build_time
        )
        self._run = self._new_run()
        if has_data:
            self.progress.work = work_of(self._run.args, self._run.model, self._run.train_rows)
            planner.rows.check_for(setup.model, setup.engine.vocab_size)
        self._set_evaluation(eval_dataset)
        self._samples = None
        if self._sample_tokenizer is not None:
            self._samples = Samples(setup, self._sample_tokenizer, self._evaluator.rows, self.progress)
        if self._guard is not None:
            self._guard.note_planned()
        events.fire("on_init_end")

    def _new_run(self) -> Run:
        events, guard = self._events, self._guard
        run = Run(
            self._setup, self._planner, self._reader, self._evaluator, events, self.progress, self.uploads,
            refused_stop=guard.refused_stop if guard else lambda: None, keep_paths=self._keep_paths,
            log=self.log_step, evaluate=self._evaluate_in_training, save=self.save_checkpoint,
        )  # fmt: skip
        events.attach(run.state, lambda: event_values(run))
        return run

    def train(
        self,
        resume_from_checkpoint: bool | str | None = None,
        trial: object = None,
        ignore_keys_for_eval: Sequence[str] | None = None,
    ) -> TrainOutput:
        """Train to the last step. Collective.

        resume_from_checkpoint: a checkpoint directory, True for the newest checkpoint of `output_dir`, or
        None. Unless it is True, checkpoints of `output_dir` that the run does not continue are archived
        (checkpoint/start.py). trial: must be None. ignore_keys_for_eval: ignore_keys of `evaluate`.
        If arguments were changed since the Trainer was made, the run is planned again. ValueError if the
        engine depends on a changed argument (compat/changes.py), if resume_from_checkpoint is True and there
        is no checkpoint, or if another run uses `output_dir`. RunStoppedError for bad numbers and wrong bits
        (runtime/errors.py).
        After a signal, a checkpoint is saved, and the process ends with status 128 + the signal's number.
        Ctrl-C in a script raises KeyboardInterrupt; the script's model then has the current weights.
        """
        self._check_train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        with run_lock(self.args.output_dir or "."), self._training():
            self._setup.fixed.begin(self.args)
            checkpoint = checkpoint_to_resume(self.args.output_dir or ".", resume_from_checkpoint)
            self._run = run = self._new_run()
            start(run, checkpoint, is_automatic=resume_from_checkpoint is True)
            loop.train(run)
            return self._finish(run)

    def _check_train(
        self, resume: bool | str | None, trial: object, ignore_keys: Sequence[str] | None
    ) -> None:
        """Check the arguments of `train`; plan again if data or `args` have changed. Collective."""
        setup, args = self._setup, self.args
        if setup.train_dataset is None:
            raise ValueError("Trainer.train: expected a train_dataset, got None; give one to Trainer")
        args._order_seed = setup.fixed.order_seed(torch.initial_seed())
        if self._guard is not None:
            self._guard.before_train(self._planner, self._events, trial, resume)
        if self._planner.refresh_rows():
            self.progress.work = work_of(self._run.args, self._run.model, self._run.train_rows)
        check_before_training(setup.model, self.args, setup.eval_dataset)
        self._evaluator.check_memory(self._evaluator.rows)
        self._ignore_keys = ignore_keys
        if setup.wants_predictions and setup.eval_dataset is not None:
            check_outputs(setup.model.config, ignore_keys, "Trainer.train")

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Set `is_training` while the context is open, during which the guard checks a script's changes."""
        setup = self._setup
        setup.is_training = setup.has_trained = setup.model.engine_owns_weights = True
        if self._guard is not None:
            self._guard.begin(self._events)
        try:
            yield
        finally:
            setup.model.end_training()
            setup.is_training = setup.model.engine_owns_weights = False
            if self._guard is not None:
                self._guard.end()

    def _finish(self, run: Run) -> TrainOutput:
        """Log and return the metrics of the whole run."""
        plan, runtime, train_loss = run.plan, time.monotonic() - run.start_time, run.stepper.losses.mean()
        # transformers divides all planned samples, steps and tokens by the runtime of this process alone.
        seconds = max(runtime, 1e-9) / max(1 - run.first_step / max(plan.max_steps, 1), 1e-9)
        metrics = {
            "train_runtime": round(runtime, 4),
            "train_samples_per_second": round(plan.num_samples / seconds, 3),
            "train_steps_per_second": round(plan.max_steps / seconds, 3),
            **rate_of_run(self.args, plan, run.train_rows, seconds, run.batches.tokens_read),
            "total_flos": run.state.total_flos,
            "train_loss": train_loss,
        }
        self.log(metrics)
        run.events.fire("on_train_end")
        return TrainOutput(run.state.global_step, train_loss, metrics)

    def checkpoint_to_resume(self, wanted: bool | str | None) -> str | None:
        """Return the checkpoint from which `train(wanted)` would resume, or None. Collective.

        Also adopt the checkpoint's token budget, so that a resumed run has the same micro-batches.
        ValueError if the checkpoint does not fit this run, or if `wanted` is True and there is no checkpoint.
        """
        checkpoint = checkpoint_to_resume(self.args.output_dir or ".", wanted)
        if checkpoint is not None:
            check_checkpoint(self._run, checkpoint)
        return checkpoint

    def log_step(self, logs: dict[str, float]) -> None:
        """Call `log` with the run's start time, if the method has such a parameter.

        A subclass may override `log` without it, as old releases of transformers had no such parameter.
        """
        if len(inspect.signature(self.log).parameters) > 1:
            self.log(logs, self._run.start_time)
        else:
            self.log(logs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the epoch to `logs`, append the entry to `state.log_history`, and fire on_log.

        Values are not rounded. start_time: start of the run, from which tokens per second are computed and
        added if tokens are counted.
        """
        run = self._run
        if run.state.epoch is not None:
            logs["epoch"] = run.state.epoch
        run.counter.add_to(logs, run.state, start_time)
        run.state.log_history.append({**logs, "step": run.state.global_step})
        run.events.fire("on_log", logs=logs)

    def evaluate(
        self,
        eval_dataset: object = None,
        ignore_keys: Sequence[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Compute and log the loss on `eval_dataset`, and the results of compute_metrics. Collective.

        eval_dataset: a data set, a dictionary of data sets by name, or the name of a data set in the
        trainer's eval_dataset, which is also the default. As in transformers, this method is called once more
        for each of several data sets, with the prefix `<metric_key_prefix>_<name>`; all metrics are returned.
        Rows without labels have no loss. With --prediction_loss_only, compute_metrics is not called.
        ignore_keys: model outputs to leave out of predictions. ValueError without data.
        Arguments that were changed since the Trainer was made take effect, or are rejected as in `train`.
        """
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(chosen, Mapping):
            metrics: dict[str, float] = {}
            for name, named in chosen.items():
                given = name if eval_dataset is None else named
                prefix = f"{metric_key_prefix}_{name}"
                metrics.update(self.evaluate(given, ignore_keys=ignore_keys, metric_key_prefix=prefix))
            return metrics
        if self._guard is not None:
            self._guard.before_evaluation("evaluate", self._planner, self._events)
        return self._evaluator.evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def _evaluate_in_training(self) -> dict[str, float]:
        """Evaluate during `train`, after sample replies. Collective.

        Calls the public method, since a subclass may override `evaluate`. A signal during the evaluation lets
        a resumed run repeat both, so the replies come first: callbacks count evaluations.
        """
        if self._samples is not None:
            if self._guard is not None:
                self._guard.before_evaluation("evaluate", self._planner, self._events)
            replies = self._samples.replies(self._evaluator.after_batch)
            self.log_step({SAMPLES: replies})  # type: ignore[dict-item]
        keys = self._ignore_keys
        return self.evaluate() if keys is None else self.evaluate(ignore_keys=keys)

    def predict(
        self, test_dataset: object, ignore_keys: Sequence[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Return predictions, labels and metrics of `test_dataset`, and log nothing. Collective.

        Predictions are the logits of all rows, or the results of preprocess_logits_for_metrics. They are None
        with --prediction_loss_only. Rows without labels have only predictions. ValueError if the predictions
        do not fit into memory. To generate replies, load the saved model in a library that generates text.
        ignore_keys: as in `evaluate`.
        """
        if self._guard is not None:
            self._guard.before_evaluation("predict", self._planner, self._events)
        return self._evaluator.predict(test_dataset, ignore_keys, metric_key_prefix)
