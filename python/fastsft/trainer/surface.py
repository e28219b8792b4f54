"""The attributes of transformers' Trainer, and its methods for files, callbacks and data loaders."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from fastsft.arguments import TrainingArguments
from fastsft.arguments.from_transformers import as_arguments
from fastsft.callbacks.callback import TrainerControl
from fastsft.callbacks.state import TrainerState
from fastsft.data.collators import only_stacks
from fastsft.model.card import write_model_card
from fastsft.model.model_save import save_given_weights, save_model_directory
from fastsft.reporting.metrics_files import metrics_table, write_metrics
from fastsft.reporting.throughput import work_of
from fastsft.runtime.given_types import check_path
from fastsft.runtime.launch import launch
from fastsft.runtime.terminal import say
from fastsft.trainer.compat.accelerator import Accelerator
from fastsft.trainer.compat.names import SetupValue, View, missing
from fastsft.trainer.compat.views import OptimizerView, ScheduleView
from fastsft.trainer.prediction import ComputeMetrics, Preprocess
from fastsft.trainer.setup import Setup

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo
    from torch.utils.data import DataLoader

    from fastsft import _C
    from fastsft.data.loaders import Collator
    from fastsft.model.causal_lm import CausalLM
    from fastsft.reporting.progress import Progress
    from fastsft.trainer.compat.guard import ScriptGuard
    from fastsft.trainer.evaluator import Evaluator
    from fastsft.trainer.events import Events
    from fastsft.trainer.hub_uploads import HubUploads
    from fastsft.trainer.planner import Planner
    from fastsft.trainer.rows import RowReader
    from fastsft.trainer.run import Run


class TrainerSurface:
    """The base class of Trainer, with all methods except those that train, evaluate and predict.

    Trainer.__init__ sets the attributes that are declared here.
    """

    _run: Run  # the run of the running or last train()
    _events: Events
    progress: Progress
    uploads: HubUploads | None
    _setup: Setup
    _guard: ScriptGuard | None
    _planner: Planner
    _reader: RowReader
    _evaluator: Evaluator

    tokenizer = SetupValue[object]("tokenizer")
    processing_class = SetupValue[object]("tokenizer")
    compute_metrics = SetupValue[ComputeMetrics | None]("compute_metrics")
    preprocess_logits_for_metrics = SetupValue[Preprocess | None]("preprocess_logits")
    bytes_at_end = SetupValue[int]("bytes_at_end")
    optimizer = View(OptimizerView)
    lr_scheduler = View(ScheduleView)
    model_init: None = None
    compute_loss_func: None = None
    optimizer_cls_and_kwargs: None = None

    def __new__(cls, *_: object, **__: object) -> Any:
        """Make the Setup here, since a subclass may set `args` or `model` before it calls `__init__`."""
        trainer = super().__new__(cls)
        trainer._setup = Setup()
        return trainer

    @property
    def _is_made(self) -> bool:
        return "_run" in vars(self)

    @property
    def args(self) -> TrainingArguments:
        """Arguments of the run. They can be set to fastsft's or transformers' TrainingArguments.

        Setting another object has the effect of changing every field that differs (see `train`). ValueError
        while `train` runs, and for rejected arguments; TypeError for an object of another class.
        """
        return self._setup.args

    @args.setter
    def args(self, args: TrainingArguments) -> None:
        if self._is_made:
            self._setup.check_not_training("args")
        self._setup.args = as_arguments(args)
        if self._is_made:
            self.callback_handler.args = self.progress.args = self._setup.args
            if not self.state.global_step:
                self.state.train_batch_size = self._setup.args.train_batch_size

    @property
    def model(self) -> CausalLM:
        """The trained model, as a fastsft CausalLM. ValueError if another model is set after __init__."""
        return self._setup.model

    @model.setter
    def model(self, model: CausalLM) -> None:
        self._check_same(model, "model")
        if not self._is_made:  # a subclass sets the model before Trainer.__init__, which replaces it
            self._setup.model = model

    @property
    def model_wrapped(self) -> CausalLM:
        """Same as `model`, since no wrapper is needed. It can be set like `model`."""
        return self.model

    @model_wrapped.setter
    def model_wrapped(self, model: CausalLM) -> None:
        self._check_same(model, "model_wrapped")

    def _check_same(self, model: object, name: str) -> None:
        if not self._is_made or model is self.model or model is getattr(self.model, "module", None):
            return
        raise ValueError(
            f"Trainer.{name}: expected the model that the Trainer was made with, whose engine is built, got "
            f"another {type(model).__name__}; give it to a new Trainer(model=...), or change the weights of "
            "the model that was given"
        )

    @property
    def engine(self) -> _C.Engine:
        """Native engine of the model. A later Trainer for the same model builds a new engine."""
        return self._setup.engine

    @property
    def state(self) -> TrainerState:
        """State of the running or last `train` call."""
        return self._run.state

    @state.setter
    def state(self, state: TrainerState) -> None:
        vars(self._run.state).update(vars(state))  # the run's parts refer to this object

    @property
    def callback_handler(self) -> Events:
        """The callbacks, and the switches (should_save, ...) that they set."""
        return self._events

    @property
    def control(self) -> TrainerControl:
        """The switches (should_save, ...) that callbacks set."""
        return self.callback_handler.control

    @property
    def is_in_train(self) -> bool:
        """True while `train` runs."""
        return self._setup.is_training

    @is_in_train.setter
    def is_in_train(self, is_training: bool) -> None:
        self._setup.is_training = is_training

    @property
    def train_dataset(self) -> object:
        """Training data. Setting new data reads their rows, and plans steps and memory again.

        ValueError while `train` runs, and if the rows do not fit into memory. ValueError also if the Trainer
        was made without training data, since its engine has no memory plan. A ValueError keeps the old data.
        """
        return self._setup.train_dataset

    @train_dataset.setter
    def train_dataset(self, dataset: object) -> None:
        setup = self._setup
        setup.check_not_training("train_dataset")
        if dataset is not None and self._is_made:
            if self._planner.memory_plan is None:
                raise ValueError(
                    "Trainer.train_dataset: this Trainer was made without training data, and its engine is "
                    "planned for none; make it with Trainer(..., train_dataset=...)"
                )
            self._planner.use_rows(self._reader.rows_of(dataset))
            self.progress.work = work_of(self._run.args, self._run.model, self._run.train_rows)
        setup.train_dataset = dataset

    @property
    def eval_dataset(self) -> object:
        """Evaluation data: a data set, a dictionary of data sets by name, or None.

        Setting new data reads their rows. Collective. ValueError while `train` runs, for token ids beyond the
        vocabulary, and if the logits for compute_metrics do not fit into memory. A ValueError keeps the old
        data.
        """
        return self._setup.eval_dataset

    @eval_dataset.setter
    def eval_dataset(self, dataset: object) -> None:
        self._setup.check_not_training("eval_dataset")
        self._set_evaluation(dataset)

    def _set_evaluation(self, dataset: object) -> None:
        if self._is_made:
            self._evaluator.read_rows(dataset)
        self._setup.eval_dataset = dataset

    @property
    def data_collator(self) -> Collator | None:
        """Collator that makes the batches. Setting another collator plans the rows again.

        ValueError while `train` runs, and for a collator that pads labels with values other than -100, which
        would be learned.
        """
        return self._setup.data_collator

    @data_collator.setter
    def data_collator(self, collator: Collator | None) -> None:
        setup = self._setup
        if collator is setup.data_collator:
            return
        setup.check_not_training("data_collator")
        changes_rows = not (only_stacks(collator) and only_stacks(setup.data_collator))
        setup.data_collator = collator
        if changes_rows and self._is_made:
            if setup.train_dataset is not None:
                self.train_dataset = setup.train_dataset
            self._set_evaluation(setup.eval_dataset)

    @property
    def accelerator(self) -> Accelerator:
        """Stand-in for accelerate's Accelerator: rank numbers, a barrier, and methods for saving."""
        return Accelerator(launch(), self.args.device, self.is_fsdp_enabled)

    @property
    def deepspeed(self) -> bool | None:
        """True with --deepspeed, else None. If True, FastChat's scripts call `save_model()`."""
        return True if self.is_deepspeed_enabled else None

    @property
    def is_deepspeed_enabled(self) -> bool:
        """True if --deepspeed is given, although fastsft's own engine trains."""
        return self.args.deepspeed_plan is not None

    @property
    def is_fsdp_enabled(self) -> bool:
        """True if --fsdp asks for sharding."""
        return bool(self.args.fsdp)

    def is_world_process_zero(self) -> bool:
        """Return True on global rank 0, which writes files and prints."""
        return self.args.process_index == 0

    def is_local_process_zero(self) -> bool:
        """Return True on local rank 0, the first rank of a machine."""
        return self.args.local_process_index == 0

    def add_callback(self, callback: object) -> None:
        """Append a callback. If `callback` is a class, append a new instance of the class."""
        self.callback_handler.add(callback)

    def pop_callback(self, callback: object) -> object:
        """Remove and return `callback`, or its first instance if it is a class. Return None if not found."""
        return self.callback_handler.pop(callback)

    def remove_callback(self, callback: object) -> None:
        """Remove `callback`, or its first instance if it is a class. Do nothing if there is none."""
        self.callback_handler.pop(callback)

    def get_train_dataloader(self) -> DataLoader[Mapping[str, torch.Tensor]]:
        """Return a torch DataLoader over this rank's micro-batches in training order. Each pass is an epoch.

        data_collator makes the batches; without a collator they are padded and stacked. Batches are on the
        CPU. Like transformers' loader, it reads one batch ahead and draws random numbers. ValueError without
        a train_dataset.
        """
        if self.train_dataset is None:
            raise ValueError("Trainer: training requires a train_dataset, got None; give one to Trainer")
        return self._reader.train_loader()

    def get_eval_dataloader(self, eval_dataset: object = None) -> DataLoader[Mapping[str, torch.Tensor]]:
        """Return a torch DataLoader over evaluation data, in the order of the data set.

        eval_dataset: a data set, the name of a data set in the trainer's eval_dataset, or None for the
        trainer's only evaluation data set. ValueError if there is no such data set.
        """
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(chosen, str):
            named = self.eval_dataset if isinstance(self.eval_dataset, Mapping) else {}
            if chosen not in named:
                raise ValueError(
                    f"no evaluation data is called {chosen}; known names: {', '.join(named) or 'none'}"
                )
            chosen = named[chosen]
        if chosen is None or isinstance(chosen, Mapping):
            raise ValueError("get_eval_dataloader: expected an eval_dataset, or the name of one")
        return self.get_test_dataloader(chosen)

    def get_test_dataloader(self, test_dataset: object) -> DataLoader[Mapping[str, torch.Tensor]]:
        """Return a torch DataLoader over `test_dataset`, in the order of the data set."""
        return self._reader.eval_loader(test_dataset)

    def _keep_paths(self) -> None:
        if self._guard is not None:
            self._guard.keep_paths()

    def save_checkpoint(self) -> Path:
        """Save `checkpoint-<step>` into `output_dir`, once per step; return its directory. Collective."""
        return self._run.checkpoints.save()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model as a Hugging Face directory, and upload it if --push_to_hub is given. Collective.

        output_dir: default is `output_dir` of the arguments. RuntimeError if the upload fails; the model is
        saved nevertheless.
        """
        self._keep_paths()
        directory = output_dir or self.args.output_dir or "."
        check_path(directory, "save_model: output_dir", "give the directory to write into")
        if os.path.isfile(directory):
            told = "expected a directory to write into, got a file; choose another"
            raise FileExistsError(errno.EEXIST, told, directory)
        with self.progress.phase("saving", f"the model to {directory}"):
            save_model_directory(self._run, directory, "Trainer.save_model")
        if not _internal_call:
            self.upload_saved(directory)

    def upload_saved(self, directory: str) -> None:
        """Upload the model that `save_model` wrote to `directory`, if --push_to_hub is given. Collective."""
        if self.uploads is not None:
            self._upload(directory, "Model save")

    def push_to_hub(self, commit_message: str = "End of training", **_: object) -> CommitInfo | None:
        """Save the model into `output_dir` and upload it. Collective. Return a CommitInfo on rank 0.

        Other arguments, which transformers' method takes, have no effect. ValueError without --push_to_hub.
        """
        if self.uploads is None:
            raise ValueError(
                "Trainer.push_to_hub: expected --push_to_hub True, which checks the access first"
            )
        self.save_model(_internal_call=True)
        return self._upload(self.args.output_dir or ".", commit_message)

    def _upload(self, directory: str, message: str) -> CommitInfo | None:
        assert self.uploads is not None
        with self.progress.phase("uploading", f"{directory} to {self.uploads.repo_id}"):
            return self.uploads.model(directory, message)

    def _save(
        self, output_dir: str | None = None, state_dict: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Write `state_dict` as a complete model directory, on the calling rank alone.

        Scripts call this method on the rank with `args.should_save`, after they have gathered
        `trainer.model.state_dict()` on all ranks. `save_model`, in contrast, gathers the weights itself and
        is called on all ranks. ValueError if `state_dict` is None in a run of several ranks, and while a
        checkpoint is being written.
        """
        directory = output_dir or self.args.output_dir or "."
        if state_dict is None and self.args.world_size > 1:
            raise ValueError("Trainer._save: expected a state_dict; trainer.save_model() gathers by itself")
        if state_dict is None:
            self.save_model(directory)
            return
        if self._run.checkpoints.saver.in_flight:
            raise ValueError("Trainer._save: a checkpoint is being written; use trainer.save_model()")
        with self.progress.phase("saving", f"the model to {directory}"):
            save_given_weights(self._run, directory, state_dict)

    def save_state(self) -> None:
        """Write trainer_state.json into `output_dir`, on rank 0."""
        self._keep_paths()
        if self.is_world_process_zero():
            directory = self._setup.output_dir
            directory.mkdir(parents=True, exist_ok=True)
            self.state.save_to_json(directory / "trainer_state.json")

    def log_metrics(self, split: str, metrics: dict[str, float]) -> None:
        """Print the metrics of `train`, `eval` or `test` as transformers does, on rank 0."""
        if self.is_world_process_zero():
            say(metrics_table(split, metrics))

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """Write `<split>_results.json` on rank 0. If `combined`, also add `metrics` to all_results.json."""
        self._keep_paths()
        if self.is_world_process_zero():
            write_metrics(self.args.output_dir or ".", split, metrics, combined=combined)

    def create_model_card(self, *_: object, **__: object) -> None:
        """Write README.md into `output_dir` on rank 0, unless it exists. The arguments have no effect."""
        if self.is_world_process_zero():
            self._write_card(self._setup.output_dir)

    def _write_card(self, directory: Path) -> None:
        write_model_card(self._run, directory)

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report missing names

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError. For attributes of transformers' Trainer, the message has advice."""
            if hasattr(type(self), name):  # a property whose attributes are not set yet
                raise AttributeError(f"Trainer.{name} is not there before Trainer.__init__ is called")
            raise AttributeError(missing(name))
