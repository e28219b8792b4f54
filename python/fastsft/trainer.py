"""The training loop with the interface of transformers' Trainer (trainer_semantics.md, sections 5 to 18)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fastsft import _C, launcher
from fastsft.arguments import TrainingArguments
from fastsft.callbacks import CallbackHandler, DefaultFlow
from fastsft.device_memory import rank_memory
from fastsft.devices import use_device
from fastsft.evaluation import evaluation_loss
from fastsft.late_results import LateResults, NotFiniteError
from fastsft.loss_meter import LossMeter
from fastsft.memory_plan import MemoryPlan, Room, plan_of_run
from fastsft.model import CausalLM
from fastsft.model_directory import prepare_output_directory
from fastsft.preflight import check_before_training
from fastsft.profile import Profile
from fastsft.reporting.progress import Progress
from fastsft.run_lock import run_lock
from fastsft.run_plan import EpochGroups, RunPlan, packing_summary, step_source
from fastsft.signals import EXIT_BASE, SignalGuard
from fastsft.state import TrainerState, TrainOutput
from fastsft.token_rows import TokenRows

# What a resumed run sets itself instead of taking it from trainer_state.json, which rank 0 wrote.
_OF_THIS_RUN = (
    "max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size",
    "is_local_process_zero", "is_world_process_zero",
)  # fmt: skip


class Trainer:
    """Trains `model` on `train_dataset`.

    model: fastsft.model.CausalLM or a directory. tokenizer or processing_class: saved beside the weights.
    args: TrainingArguments. The data sets have FastChat's items; eval_dataset may be None. callbacks:
    instances or classes with the events of transformers. Every rank makes one and calls the same methods.
    ValueError for what could only fail later: evaluation without data, an output_dir that takes no files.
    """

    def __init__(
        self,
        model: CausalLM | str,
        *,
        args: TrainingArguments,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        tokenizer: Any = None,
        processing_class: Any = None,
        callbacks: Iterable[Any] | None = None,
    ) -> None:
        self.args = args
        self.model = CausalLM.from_pretrained(model) if isinstance(model, str) else model
        check_before_training(self.model, args, eval_dataset)
        use_device(args.device, args.tf32, args.full_determinism)
        groups = launcher.join(args.ddp_timeout, args.device, args.node_size)
        prepare_output_directory(self.model.source_directory, args.output_dir or ".")
        self.tokenizer = self.processing_class = tokenizer if processing_class is None else processing_class
        self._seed_everything(args.seed)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.memory_plan: MemoryPlan | None = None
        self.token_budget = args.token_budget
        if train_dataset is not None:
            self._plan_training()
        recompute = self.memory_plan.recompute if self.memory_plan else "selective"
        self.model.build(args, groups, recompute)
        self.progress = Progress(args)
        self.callbacks = CallbackHandler([DefaultFlow(), *(callbacks or ()), self.progress], args)
        self.state = self._new_state()
        self._losses, self._results = LossMeter(), LateResults()
        self._saved: Path | None = None
        if train_dataset is not None:
            self.train_rows.check_ids(self.engine.vocab_size)
        if eval_dataset is not None:
            self.eval_rows = TokenRows.of(eval_dataset, args.model_max_length)
            self.eval_rows.check_ids(self.engine.vocab_size)
        self.callbacks.fire("on_init_end", self.state, **self._references())

    def _plan_training(self) -> None:
        """Read the data, and choose micro-batches and recompute by memory; ValueError when nothing fits."""
        args = self.args
        self.train_rows = TokenRows.of(self.train_dataset, args.model_max_length)
        self.plan = RunPlan.of(args, len(self.train_rows))
        beside = args.offload and args.device != "cpu"
        self.memory = Room(rank_memory(args.device), rank_memory("cpu") if beside else None)
        self._choose_plan()

    def _choose_plan(self, kept: tuple[str, int] | None = None) -> None:
        setting, cost = self.model.memory_setting(self.args), self.model.conversation_cost()
        self.memory_plan = plan_of_run(self.args, setting, self.train_rows, cost, self.memory, kept)
        self.token_budget = self.memory_plan.token_budget

    def keep_token_budget(self, token_budget: int) -> None:
        """Cut micro-batches by another budget than the planned one; ValueError when they do not fit."""
        if token_budget != self.token_budget and self.memory_plan is not None:
            self._choose_plan((self.memory_plan.recompute, token_budget))

    def packing(self) -> Any:
        """How the first steps are cut over ranks and micro-batches (csrc/data/packing_summary.h)."""
        return packing_summary(self.args, self.train_rows, self.token_budget, self.model.conversation_cost())

    @property
    def engine(self) -> Any:
        """The native engine of the model, which a later Trainer on the same model replaces."""
        return self.model.engine

    @property
    def control(self) -> Any:
        """The switches that callbacks set."""
        return self.callbacks.control

    @property
    def is_deepspeed_enabled(self) -> bool:
        """False: sharding is fastsft's own."""
        return False

    @property
    def is_fsdp_enabled(self) -> bool:
        """Whether --fsdp asks for sharding."""
        return bool(self.args.fsdp)

    def is_world_process_zero(self) -> bool:
        """Whether this is global rank 0, which writes and prints."""
        return self.args.process_index == 0

    def is_local_process_zero(self) -> bool:
        """Whether this is the first rank of its machine."""
        return self.args.local_process_index == 0

    def train(self, resume_from_checkpoint: bool | str | None = None) -> TrainOutput:
        """Run to the end; collective.

        resume_from_checkpoint: True for the newest checkpoint of `output_dir`, a directory, or None.
        ValueError when there is none, or when another run holds `output_dir`. RuntimeError names the step
        whose loss or gradient is not finite. A signal saves a checkpoint and leaves with status 128 + its
        number.
        """
        if self.train_dataset is None:
            raise ValueError("Trainer.train: expected a train_dataset, got None")
        with run_lock(self.args.output_dir or "."):
            return self._train(resume_from_checkpoint)

    def _train(self, resume_from_checkpoint: bool | str | None) -> TrainOutput:
        checkpoint = self._checkpoint_to_resume(resume_from_checkpoint)
        self.state = self._new_state()
        self.state.epoch = 0.0
        self.state.max_steps, self.state.num_train_epochs = self.plan.max_steps, self.plan.num_epochs
        self.state.set_cadences(self.args)
        if checkpoint is not None:
            self._resume(checkpoint)
        self._losses, self._saved = LossMeter(self.state.global_step), None
        self._results.clear()
        self._profile = Profile(self.args.profile, self.args.profile_steps)
        started = time.monotonic()
        with SignalGuard() as guard:
            self._fire("on_train_begin")
            if self.args.eval_on_start:
                self.evaluate()
            self._run_epochs(self._schedule(), guard)
        return self._finish(started)

    def _run_epochs(self, schedule: Any, guard: SignalGuard) -> None:
        epoch, first = divmod(self.state.global_step, self.plan.steps_per_epoch)
        if self.args.ignore_data_skip:
            first = 0
        source = step_source(self.args, self.train_rows, self.token_budget, self.model.conversation_cost())
        while self.state.global_step < self.plan.max_steps and epoch < self.plan.num_epochs:
            groups = EpochGroups(self.args, len(self.train_rows), epoch, source)
            self._fire("on_epoch_begin")
            for step in range(first, self.plan.steps_per_epoch):
                self._fire("on_step_begin")
                self._step(groups, epoch, step, schedule)
                self._log_evaluate_save()
                self._answer(guard)
                if self.control.should_epoch_stop or self.control.should_training_stop:
                    break
            self._fire("on_epoch_end")
            self._log_evaluate_save()
            if self.control.should_training_stop:
                break
            epoch, first = epoch + 1, 0

    def _step(self, groups: EpochGroups, epoch: int, step: int, schedule: Any) -> None:
        """One optimizer step on one accumulation group of all ranks."""
        args, plan = self.args, groups.plan(step)
        rate = schedule.rate(self.state.global_step)
        self._profile.before_step(self.engine, self.state.global_step + 1)
        self.engine.begin_step(
            self.train_rows.native,
            plan.micro_batches,
            plan.weights,
            learning_rate=rate,
            beta1=args.adam_beta1,
            beta2=args.adam_beta2,
            eps=args.adam_epsilon,
            weight_decay=args.weight_decay,
            max_grad_norm=args.max_grad_norm or 0.0,
            label_smoothing=args.label_smoothing_factor,
            rounding_seed=args.seed,
        )
        self.state.global_step += 1
        self.state.epoch = epoch + groups.done_after(step) / self.plan.micro_batches
        self.state.total_flos += (
            6.0
            * plan.num_conversations
            * self.train_rows.padded_length
            * self.engine.num_non_embedding_parameters
        )
        self._profile.after_step(self.engine, self.state.global_step)
        self._results.begun(self.state.global_step, rate)
        self._take_results(all=False)
        self._fire(
            "on_step_end",
            step_tokens=plan.num_tokens,
            step_logs={"epoch": self.state.epoch, **self._losses.last()},
        )

    def _take_results(self, *, all: bool) -> None:
        """Losses of the steps begun: a GPU is one step behind, unless `all` waits for it."""
        try:
            self._results.take(self.engine, self._losses, clipped=bool(self.args.max_grad_norm), all=all)
        except NotFiniteError as error:
            self.state.global_step = error.step - 1
            raise

    def _log_evaluate_save(self) -> None:
        if self.control.should_log or self.control.should_evaluate or self.control.should_save:
            self._take_results(all=True)
        if self.control.should_log and self.state.global_step > self._losses.logged_step:
            self.log(self._losses.take(self.state.global_step))
        if self.control.should_evaluate:
            self.evaluate()
        if self.control.should_save:
            self._save_checkpoint()

    def _answer(self, guard: SignalGuard) -> None:
        """After a signal: save, say so, and leave unless the signal only asked for a checkpoint."""
        number = guard.take()
        if not number:
            return
        self._take_results(all=True)
        path = self._save_checkpoint()
        if self.is_world_process_zero():
            print(f"saved {path}; the same command resumes from it", flush=True)
        if number != guard.only_save:
            raise SystemExit(EXIT_BASE + number)

    def _finish(self, started: float) -> TrainOutput:
        self._take_results(all=True)
        self._profile.finish(self.engine)
        runtime = time.monotonic() - started
        train_loss = self._losses.total() / max(self.state.global_step, 0.001)
        metrics = {
            "train_runtime": round(runtime, 4),
            "train_samples_per_second": round(self.plan.num_samples / max(runtime, 1e-9), 3),
            "train_steps_per_second": round(self.plan.max_steps / max(runtime, 1e-9), 3),
            "total_flos": self.state.total_flos,
            "train_loss": train_loss,
        }
        self.log(metrics)
        self._fire("on_train_end")
        return TrainOutput(self.state.global_step, train_loss, metrics)

    def evaluate(self, eval_dataset: Any = None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Loss on `eval_dataset` (default: the trainer's), logged; collective. ValueError without one."""
        if eval_dataset is not None:
            rows = TokenRows.of(eval_dataset, self.args.model_max_length)
        elif self.eval_dataset is not None:
            rows = self.eval_rows
        else:
            raise ValueError("Trainer: evaluation requires an eval_dataset; give --eval_data_path")
        started = time.monotonic()
        loss = evaluation_loss(self.engine, rows, self.args)
        runtime = time.monotonic() - started
        steps = _C.micro_batch_count(len(rows), self.args.eval_batch_size, self.args.world_size)
        metrics = {
            f"{metric_key_prefix}_loss": loss,
            f"{metric_key_prefix}_runtime": round(runtime, 4),
            f"{metric_key_prefix}_samples_per_second": round(len(rows) / max(runtime, 1e-9), 3),
            f"{metric_key_prefix}_steps_per_second": round(steps / max(runtime, 1e-9), 3),
        }
        self.log(metrics)
        self._fire("on_evaluate", metrics=metrics)
        return metrics

    def log(self, logs: dict[str, float]) -> None:
        """Add the epoch, keep the values unrounded in `state.log_history`, and tell the callbacks."""
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self._fire("on_log", logs=logs)

    def save_model(self, output_dir: str | None = None) -> None:
        """Write a complete Hugging Face directory (default: `output_dir` of the arguments); collective."""
        from fastsft import saving

        saving.save_model_directory(self, output_dir or self.args.output_dir or ".")

    def save_state(self) -> None:
        """Write trainer_state.json into `output_dir`, on rank 0."""
        if self.is_world_process_zero():
            directory = Path(self.args.output_dir or ".")
            directory.mkdir(parents=True, exist_ok=True)
            self.state.save_to_json(directory / "trainer_state.json")

    def _save_checkpoint(self) -> Path:
        from fastsft import saving

        path = Path(self.args.output_dir or ".") / f"checkpoint-{self.state.global_step}"
        if self._saved == path:
            return path
        self.state.stateful_callbacks = {"TrainerControl": self.control.state()}
        saving.save_checkpoint(self, str(path))
        self._saved = path
        self._fire("on_save")
        return path

    def _checkpoint_to_resume(self, wanted: bool | str | None) -> str | None:
        if not wanted:
            return None
        if wanted is not True:
            return str(wanted)
        from fastsft import saving

        newest = saving.newest_checkpoint(self.args.output_dir or ".")
        if newest is None:
            raise ValueError(f"No valid checkpoint found in output directory ({self.args.output_dir})")
        return str(newest)

    def _resume(self, checkpoint: str) -> None:
        from fastsft import saving

        saving.load_checkpoint(self, checkpoint)
        fresh, self.state = self.state, TrainerState.load_from_json(Path(checkpoint) / "trainer_state.json")
        for name in _OF_THIS_RUN:
            setattr(self.state, name, getattr(fresh, name))
        if self.is_world_process_zero():
            print(
                f"resumed from {checkpoint}: step {self.state.global_step} of {self.plan.max_steps}, "
                f"epoch {self.state.epoch:.4g}, "
                f"next learning rate {self._schedule().rate(self.state.global_step):g}",
                flush=True,
            )

    def _schedule(self) -> Any:
        args = self.args
        options = args.lr_scheduler_kwargs if isinstance(args.lr_scheduler_kwargs, dict) else {}
        return _C.Schedule(
            args.lr_scheduler_type,
            learning_rate=args.learning_rate,
            warmup_steps=args.get_warmup_steps(self.plan.max_steps),
            total_steps=self.plan.max_steps,
            options={name: value for name, value in options.items() if value is not None},
        )

    def _new_state(self) -> TrainerState:
        return TrainerState(
            train_batch_size=self.args.train_batch_size,
            is_local_process_zero=self.is_local_process_zero(),
            is_world_process_zero=self.is_world_process_zero(),
        )

    def _references(self) -> dict[str, Any]:
        return {"model": self.model, "processing_class": self.processing_class, "tokenizer": self.tokenizer}

    def _fire(self, event: str, **kwargs: Any) -> None:
        self.callbacks.fire(event, self.state, **self._references(), **kwargs)

    @staticmethod
    def _seed_everything(seed: int) -> None:
        import torch

        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
