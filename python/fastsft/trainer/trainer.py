"""A Trainer with the interface of transformers' (docs/spec/trainer_semantics.md, sections 5 to 18)."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastsft.arguments.from_transformers import as_arguments
from fastsft.callbacks.state import TrainerState, TrainOutput
from fastsft.checkpoint.aside import put_abandoned_aside
from fastsft.checkpoint.finished_run import forget_end
from fastsft.checkpoint.saver import CheckpointSaver
from fastsft.data.collators import only_stacks
from fastsft.lora.trained_model import as_trained_model
from fastsft.model.directory import prepare_output_directory
from fastsft.model.tuned_products import forget_tuned_products
from fastsft.ranks import process_group as launcher
from fastsft.ranks.run_lock import run_lock
from fastsft.ranks.torchrun_job import starts_of_job
from fastsft.reporting.loss_reports import LossReports
from fastsft.reporting.progress import Progress
from fastsft.reporting.status import stop_reason
from fastsft.reporting.throughput import work_of
from fastsft.runtime.devices import use_device
from fastsft.runtime.timeouts import deadline
from fastsft.trackers.tracker import make_trackers
from fastsft.trainer.agreed_control import RunGuard
from fastsft.trainer.agreed_inputs import agree_on_model, agree_on_plan, meet_for_trainer
from fastsft.trainer.bad_steps import BadSteps
from fastsft.trainer.best_model import BestModel
from fastsft.trainer.callback_handler import CallbackHandler, DefaultFlow, set_intervals
from fastsft.trainer.callback_notices import tell_callbacks
from fastsft.trainer.event_checks import EventChecks
from fastsft.trainer.fixed_arguments import FixedArguments
from fastsft.trainer.hub_uploads import HubUploads
from fastsft.trainer.log_level import use_log_level
from fastsft.trainer.loop import TrainingLoop
from fastsft.trainer.loss_meter import LossMeter
from fastsft.trainer.loss_scale import LossScale
from fastsft.trainer.loss_watch import LossWatch
from fastsft.trainer.model_outputs import check_outputs
from fastsft.trainer.modes import check_modes
from fastsft.trainer.pending_work import Due
from fastsft.trainer.prediction import ComputeMetrics, Preprocess
from fastsft.trainer.preflight import (
    check_autocast,
    check_before_training,
    check_metrics,
    check_own_step,
    check_patched_trainer,
)
from fastsft.trainer.resume import check_resumable, checkpoint_to_resume, resume
from fastsft.trainer.start_directory import StartDirectory, working_directory
from fastsft.trainer.token_counter import TokenCounter, rate_of_run
from fastsft.trainer.trainer_callbacks import TrainerCallbacks
from fastsft.trainer.trainer_checkpoints import TrainerCheckpoints
from fastsft.trainer.trainer_data import TrainerData
from fastsft.trainer.trainer_evaluation import TrainerEvaluation
from fastsft.trainer.trainer_files import TrainerFiles
from fastsft.trainer.trainer_model import TrainerModel
from fastsft.trainer.trainer_plan import TrainerPlan
from fastsft.trainer.unsupported import TrainerNames

if TYPE_CHECKING:
    from fastsft.data.loaders import Collator


class Trainer(
    StartDirectory,
    TrainerPlan,
    TrainerEvaluation,
    TrainerCallbacks,
    TrainerCheckpoints,
    TrainerFiles,
    TrainerData,
    TrainerModel,
    TrainerNames,
):
    """Trains `model` on `train_dataset`. Arguments are in the order of transformers' Trainer.

    model: a directory, fastsft.model.CausalLM, a causal language model of transformers, or a PeftModel of
    one with LoRA; the last two have the trained weights when `train` returns (model/loaded_model.py,
    lora/given_model.py). peft_config: a LoraConfig, of adapters that `model` gets; it may be `model` itself
    where it names its base (lora/trained_model.py). args: fastsft's TrainingArguments or transformers'.
    The data sets have FastChat's items; eval_dataset may be None, or several by name. data_collator:
    gets the batches that transformers would give it (data/collators.py). tokenizer or processing_class: saved
    with the weights. compute_metrics, preprocess_logits_for_metrics: of evaluations (prediction.py).
    callbacks: instances or classes with the events of transformers. Every rank makes one and calls the same
    methods.
    ValueError for what could only fail later (evaluation without data, an output_dir that takes no files),
    and for what has no place here: model_init, compute_loss_func, optimizers, overridden steps.
    """

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
        check_own_step(
            self, model_init=model_init, compute_loss_func=compute_loss_func,
            optimizers=optimizers, optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
        )  # fmt: skip
        self._args = args = as_arguments(args)
        self.fixed_arguments = FixedArguments(args)
        callbacks = list(callbacks or ())
        with deadline(args, "init"):
            meet_for_trainer(
                args, callbacks, train_dataset=train_dataset, eval_dataset=eval_dataset,
                compute_metrics=compute_metrics, preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            )  # fmt: skip
        self._started_in = working_directory()
        only_stacks(data_collator)
        check_metrics(args, compute_metrics)
        self._data_collator, self.compute_metrics = data_collator, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self._check_libraries("", training=train_dataset is not None)
        self._model = as_trained_model(model, peft_config, args.seed, args.engine)
        check_before_training(self.model, args, eval_dataset)
        self.model.check_as_given("Trainer", train_dataset is not None)
        use_device(str(args.device), args.tf32, args.full_determinism)
        use_log_level(args)
        with deadline(args, "init"):
            groups = launcher.join(args.ddp_timeout, str(args.device), args.node_size)
        self.launched_by, self.bytes_at_end = starts_of_job(), 0
        prepare_output_directory(self.model.source_directory, args.output_dir or ".")
        self.uploads = HubUploads(self) if args.push_to_hub else None
        self.tokenizer = self.processing_class = tokenizer if processing_class is None else processing_class
        self._seed_everything(args.seed)
        self.is_in_train = False
        self.train_reader, self.epoch_reads = None, None
        self.resumed_states, self.foreign_states = None, None
        self._eval_readers = {}
        self._plan_of(train_dataset)
        agree_on_model(self.model, self.tokenizer)
        agree_on_plan(self)
        recompute = self.memory_plan.recompute if self.memory_plan else "selective"
        built = time.monotonic()
        self.model.build(args, groups, recompute, sync_each_batch=self.sync_each_batch)
        self._build_time, self._has_trained = round(time.monotonic() - built, 4), False
        self.progress = Progress(args, work=work_of(self) if train_dataset is not None else None)
        reports = [
            *make_trackers(args.report_to),
            LossReports(
                args.run_name or str(args.output_dir), str(getattr(self.model, "source_directory", ""))
            ),
        ]
        self.callbacks = CallbackHandler([DefaultFlow(), *reports, *callbacks, self.progress], args)
        self.state, self.best_model = self._new_state(), BestModel(self)
        self._counter, self.start_time = TokenCounter(args), time.monotonic()
        self.bad_steps, self.loss_scale = BadSteps(args), LossScale(args)
        self.loss_watch = LossWatch(self.engine.vocab_size, args.learning_rate)
        self.due, self.losses = Due(), LossMeter()
        self._at_batch: Callable[[], None] = lambda: None
        self.saver = self._make_saver()
        if train_dataset is not None:
            self.train_rows.check_for(self.model, self.engine.vocab_size)
        self._set_evaluation(eval_dataset)
        self._planned = args.settled_values()
        self.callbacks.fire("on_init_end", self.state, **self._references())

    def train(
        self,
        resume_from_checkpoint: bool | str | None = None,
        trial: object = None,
        ignore_keys_for_eval: Sequence[str] | None = None,
    ) -> TrainOutput:
        """Run to the end; collective. trial is refused; ignore_keys_for_eval: for `evaluate`.

        resume_from_checkpoint: True for the newest checkpoint of `output_dir`, a directory, or None. Unless
        it is True, checkpoints of `output_dir` that the run does not follow are put aside (checkpoint.py).
        ValueError when there is none, when another run holds `output_dir`, and for changed arguments that the
        engine was made for (trainer/trainer_plan.py); others are planned again. RunStoppedError for bad
        numbers and wrong bits (runtime/errors.py). A signal saves a checkpoint and leaves with status 128 +
        its number; Ctrl-C in a script is a KeyboardInterrupt, and the model that was given has the weights.
        """
        if self.train_dataset is None:
            raise ValueError("Trainer.train: expected a train_dataset, got None")
        check_own_step(
            self, trial=trial, optimizer=self.optimizer, lr_scheduler=self.lr_scheduler,
            model_init=self.model_init, compute_loss_func=self.compute_loss_func,
            optimizer_cls_and_kwargs=self.optimizer_cls_and_kwargs,
        )  # fmt: skip
        check_patched_trainer()
        check_autocast()
        check_modes()
        self.callbacks.check_flow()
        self._take_changes("train", resume_from_checkpoint=resume_from_checkpoint)
        tell_callbacks(self.model, self.callbacks.callbacks)
        self._take_rows()
        check_before_training(self.model, self.args, self.eval_dataset)
        self._check_predictions(self.eval_rows)
        self.ignore_keys_for_eval = ignore_keys_for_eval
        if self._wants_predictions() and self.eval_dataset is not None:
            check_outputs(self.model.config, ignore_keys_for_eval, "Trainer.train")
        with run_lock(self.args.output_dir or "."):
            self.is_in_train = self._has_trained = self.model.engine_leads = True
            self.event_checks = EventChecks(self)
            try:
                return self._train(resume_from_checkpoint)
            finally:
                self.model.end_training()
                self.is_in_train = self.model.engine_leads = False
                self.event_checks = None

    def checkpoint_to_resume(self, wanted: bool | str | None) -> str | None:
        """The checkpoint that `train(wanted)` goes on from, checked to be of this run; collective.

        Micro-batches are cut as it has them from here on. ValueError as `train`.
        """
        checkpoint = checkpoint_to_resume(self.args.output_dir or ".", wanted)
        if checkpoint is not None:
            check_resumable(self, checkpoint)
        return checkpoint

    def _train(self, resume_from_checkpoint: bool | str | None) -> TrainOutput:
        self.fixed_arguments.begin(self.args)
        checkpoint = checkpoint_to_resume(self.args.output_dir or ".", resume_from_checkpoint)
        self.state = self._new_state()
        self.bad_steps, self.loss_scale = BadSteps(self.args), LossScale(self.args)
        self.loss_watch = LossWatch(self.engine.vocab_size, self.args.learning_rate)
        self.best_model, self.due, self.losses = BestModel(self), Due(), LossMeter()
        self.state.epoch = 0.0
        self.state.max_steps, self.state.num_train_epochs = self.plan.max_steps, self.plan.num_epochs
        set_intervals(self.state, self.args)
        self.saver = self._make_saver()
        self.resumed_states, self.foreign_states, self.plateau_metrics = None, None, None
        self.open_train_reader()
        forget_tuned_products()
        if checkpoint is not None:
            resume(self, checkpoint)
            self.loss_watch.begin(self.state.log_history)
        self._leave_behind(checkpoint, automatic=resume_from_checkpoint is True)
        self.saver.check_room()
        self._counter.begin(self.state)
        first_step = self.state.global_step
        self.start_time = started = time.monotonic()
        self._reserve()
        with RunGuard() as guard:
            loop = TrainingLoop(self, guard)
            self._at_batch = loop.answer_signals
            self.model.begin_training(has_moved=checkpoint is not None)
            self.model.set_mode(training=True)
            self.fire("on_train_begin")
            try:
                self.model.check_as_given("Trainer.train", True)  # callbacks may have changed it
                self.model.take_written_weights()
                if self.args.eval_on_start:
                    self.evaluate_in_training()
                loop.run()
                self.model.take_written_weights()
                with deadline(self.args, "save"):
                    self.saver.wait()
                    self.best_model.load()
                    if not self.bytes_at_end:  # else when the model is on disk: a restart needs the last one
                        self.best_model.remove_others()
                    self.model.give_back()
            except BaseException as error:
                self.saver.abandon(error)
                self.fire("on_train_stopped", reason=stop_reason(error))
                raise
            finally:
                self._at_batch = lambda: None
        return self._finish(started, first_step)

    def _leave_behind(self, checkpoint: str | None, *, automatic: bool) -> None:
        """Put aside what an earlier run left in `output_dir` and this run does not use."""
        forget_end(self.args.output_dir or ".")
        if not automatic:
            put_abandoned_aside(self.args.output_dir or ".", checkpoint, self.model.source_directory)

    def _finish(self, started: float, first_step: int) -> TrainOutput:
        runtime, train_loss = time.monotonic() - started, self.losses.mean()
        # transformers has all samples, steps and tokens of the plan over the time of this process.
        seconds = max(runtime, 1e-9) / max(1 - first_step / max(self.plan.max_steps, 1), 1e-9)
        metrics = {
            "train_runtime": round(runtime, 4),
            "train_samples_per_second": round(self.plan.num_samples / seconds, 3),
            "train_steps_per_second": round(self.plan.max_steps / seconds, 3),
            **rate_of_run(self.args, self.plan, self.train_rows, seconds, self._tokens_read),
            "total_flos": self.state.total_flos,
            "train_loss": train_loss,
        }
        self.log(metrics)
        self.fire("on_train_end")
        return TrainOutput(self.state.global_step, train_loss, metrics)

    def log_step(self, logs: dict[str, float]) -> None:
        """`log`, with the time of start unless a derived class has it in the form of old releases."""
        if len(inspect.signature(self.log).parameters) > 1:
            self.log(logs, self.start_time)
        else:
            self.log(logs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the epoch, keep the values unrounded in `state.log_history`, and tell the callbacks.

        start_time: of the run, where tokens are counted; their rate is added then.
        """
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        self._counter.add_to(logs, self.state, start_time)
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.fire("on_log", logs=logs)

    def _make_saver(self) -> CheckpointSaver:
        return CheckpointSaver(self)

    def _new_state(self) -> TrainerState:
        return TrainerState(
            train_batch_size=self.args.train_batch_size,
            is_local_process_zero=self.is_local_process_zero(),
            is_world_process_zero=self.is_world_process_zero(),
        )

    @staticmethod
    def _seed_everything(seed: int) -> None:
        import torch

        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
