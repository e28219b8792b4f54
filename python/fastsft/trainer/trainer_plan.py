"""Plan of a Trainer: its training rows, steps and memory, and what changes of them before `train`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch

from fastsft.arguments import TrainingArguments
from fastsft.arguments.choices import is_same
from fastsft.arguments.from_transformers import as_arguments, take_changes_of_source
from fastsft.arguments.precision import STATE_FLAGS
from fastsft.callbacks.state import TrainerState
from fastsft.data.token_rows import TokenRows
from fastsft.model.directory import prepare_output_directory
from fastsft.model.tuned_products import tune_products
from fastsft.originals.patched_functions import check_patched_functions
from fastsft.planning.device_memory import rank_memory
from fastsft.planning.memory_plan import MemoryPlan
from fastsft.planning.plan_choice import Kept, Room, plan_of_run
from fastsft.planning.run_plan import RunPlan, packing_summary
from fastsft.ranks import process_group as launcher
from fastsft.reporting.throughput import work_of
from fastsft.runtime.messages import tell
from fastsft.trainer.accelerate_state import check_accelerate_state
from fastsft.trainer.agreed_inputs import agree_on_rows, agree_on_start, callback_facts
from fastsft.trainer.callback_handler import CallbackHandler
from fastsft.trainer.fixed_arguments import FixedArguments
from fastsft.trainer.preflight import check_metrics

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.data.loaders import Collator
    from fastsft.model.causal_lm import CausalLM
    from fastsft.reporting.progress import Progress
    from fastsft.trainer.hub_uploads import HubUploads
    from fastsft.trainer.prediction import ComputeMetrics

# What the engine, the process groups, the rows and the trackers are made for; another value needs others.
_OF_CONSTRUCTION = (
    "use_cpu", "no_cuda", "engine", "bf16", "fp16", "tf32", "full_determinism", "recompute",
    "attention_kernel", *STATE_FLAGS, "sync_each_batch", "model_max_length",
    "fsdp", "fsdp_config", "deepspeed", "ddp_backend", "ddp_timeout",
    "report_to", "run_name", "push_to_hub", "include_num_input_tokens_seen",
)  # fmt: skip
_OF_UPLOADS = ("hub_model_id", "hub_private_repo", "hub_revision")


class TrainerPlan:
    """The training rows and the plan made of them; a part of Trainer."""

    _args: TrainingArguments
    model: CausalLM
    fixed_arguments: FixedArguments
    progress: Progress
    is_in_train: bool
    eval_dataset: object
    compute_metrics: ComputeMetrics | None
    train_rows: TokenRows
    callbacks: CallbackHandler
    state: TrainerState
    uploads: HubUploads | None
    plan: RunPlan
    memory: Room
    memory_plan: MemoryPlan | None
    token_budget: int
    _planned: dict[str, object]
    _keep_paths: Callable[[], None]
    _read_rows: Callable[..., TokenRows]
    _train_dataset: object
    _data_collator: Collator | None
    _agreed_rows: TokenRows | None = None

    if TYPE_CHECKING:  # of TrainerModel

        @property
        def engine(self) -> _C.Engine: ...

    @property
    def args(self) -> TrainingArguments:
        """The arguments. Setting others counts as a change of each field that differs (`train`).

        fastsft's or transformers', as for the constructor. ValueError while `train` runs, and for what is
        refused; TypeError for another object.
        """
        return self._args

    @args.setter
    def args(self, args: TrainingArguments) -> None:
        made = hasattr(self, "callbacks")  # a subclass may set them before Trainer.__init__ does
        if made:
            check_not_training(self, "args")
        self._args = as_arguments(args)
        if made:
            self.callbacks.args = self.progress.args = self._args
            if not self.state.global_step:
                self.state.train_batch_size = self._args.train_batch_size

    @property
    def train_dataset(self) -> object:
        """The data to train on, as it was given. Setting it reads its rows and plans steps and memory again.

        ValueError while `train` runs, for a Trainer that was made without training data, whose engine is not
        planned for any, and for rows that do not fit; the old data stay then.
        """
        return self._train_dataset

    @train_dataset.setter
    def train_dataset(self, dataset: object) -> None:
        check_not_training(self, "train_dataset")
        if dataset is None:
            self._train_dataset = None
            return
        if self.memory_plan is None:
            raise ValueError(
                "Trainer.train_dataset: this Trainer was made without training data, and its engine is "
                "planned for none; make it with Trainer(..., train_dataset=...)"
            )
        self._use_rows(self._read_rows(dataset))
        self._train_dataset = dataset

    def _use_rows(self, rows: TokenRows) -> None:
        rows.check_for(self.model, self.engine.vocab_size)
        self._plan_again(rows)
        self.progress.work = work_of(self)

    def _take_rows(self) -> None:
        """The rows of train_dataset as it is now, planned again where a script has changed it."""
        if not all(launcher.gather_objects(self.train_rows.is_current())):
            self._use_rows(self._read_rows(self._train_dataset))
            self._agree_on_rows()

    def make_room(self, row: int, tokens: int) -> None:
        """Plan memory again for a row that is longer than all that were planned for.

        The same on all ranks. ValueError, naming the row, when it does not fit.
        """
        planned = self.train_rows.longest
        if tokens <= planned:
            return
        rows = self.train_rows.with_bound(tokens)
        try:
            assert self.memory_plan is not None
            self._choose_plan(rows, Kept(self.memory_plan.recompute, self.token_budget, self.sync_each_batch))
        except ValueError as error:
            raise ValueError(
                f"row {row} of train_dataset has {tokens:,} tokens, memory was planned for rows of "
                f"{planned:,}: {error}"
            ) from error
        self.train_rows = rows
        self.engine.reserve(**self.memory_plan.work.shapes())
        tell(f"row {row} has {tokens:,} tokens, {planned:,} were planned for: memory is planned again")

    def _reserve(self) -> None:
        """The engine's memory of training, and the algorithms of its products; collective."""
        if self.memory_plan is None:
            return
        work = self.memory_plan.work
        self.engine.reserve(**work.shapes())
        if self.args.tune_gemm:
            tell(tune_products(self.model, self.engine, self.args.device, work))

    def _plan_of(self, dataset: object) -> None:
        """Read the data, and choose micro-batches and recompute by memory; ValueError when nothing fits."""
        args, self._train_dataset, self.memory_plan = self.args, dataset, None
        self.token_budget = args.token_budget
        if dataset is None:
            return
        self.train_rows = self._read_rows(dataset)
        self._agree_on_rows()
        self.plan = RunPlan.of(args, len(self.train_rows))
        beside = args.offload and args.device.type != "cpu"
        self.memory = Room(rank_memory(str(args.device)), rank_memory("cpu") if beside else None)
        self._choose_plan(self.train_rows)

    def _plan_again(self, rows: TokenRows) -> None:
        """Steps and micro-batches for `rows` under the arguments as they are now; the engine stays."""
        assert self.memory_plan is not None
        plan = RunPlan.of(self.args, len(rows))
        self._choose_plan(rows, Kept(self.memory_plan.recompute, self.args.micro_batch_tokens))
        self.plan, self.train_rows = plan, rows

    def _choose_plan(self, rows: TokenRows, kept: Kept | None = None) -> None:
        setting, cost = self.model.memory_setting(self.args), self.model.conversation_cost()
        self.memory_plan = plan_of_run(self.args, setting, rows, cost, self.memory, kept)
        self.token_budget = self.memory_plan.token_budget
        self.model.reduce_each_batch(each=self.sync_each_batch)

    @property
    def sync_each_batch(self) -> bool:
        """Gradients are reduced in every micro-batch, not once a step."""
        return self.memory_plan is None or self.memory_plan.setting.state.sync_each_batch

    def keep_plan(self, token_budget: int | None, sync_each_batch: bool | None) -> None:
        """Take micro-batches and reductions of another plan; ValueError when they do not fit.

        token_budget: None: as it is. sync_each_batch: None: chosen again where the budget is another.
        """
        if self.memory_plan is None:
            return
        budget = self.token_budget if token_budget is None else token_budget
        if budget != self.token_budget or sync_each_batch not in (None, self.sync_each_batch):
            kept = Kept(self.memory_plan.recompute, budget, sync_each_batch)
            self._choose_plan(self.train_rows, kept)

    def packing(self) -> _C.PackingSummary:
        """The cut of the first steps over ranks and micro-batches (csrc/data/step_source.h)."""
        summary: _C.PackingSummary = packing_summary(
            self.args, self.train_rows, self.token_budget, self.model.conversation_cost()
        )
        return summary

    def _agree_on_rows(self) -> None:
        """All ranks train on the same data; collective, and once for each set of rows."""
        if self._agreed_rows is not self.train_rows:
            agree_on_rows("the training data", self._train_dataset, self.train_rows)
            self._agreed_rows = self.train_rows

    def _take_changes(self, method: str, **given: object) -> None:
        """Check arguments that a script changed since they were planned with, and plan again; collective.

        method: the one that was called; given: its arguments that must be alike. ValueError for what the
        constructor refuses, for fields that the engine was made for, and for ranks that disagree.
        """
        take_changes_of_source(self.args)
        facts = {f"{method}({name}=)": value for name, value in given.items()}
        if method == "train":
            self.args._order_seed = self.fixed_arguments.order_seed(torch.initial_seed())
            facts["torch.manual_seed"] = self.args.order_seed
        agree_on_start(self.args, **facts, **callback_facts(self.callbacks.callbacks))
        if self._train_dataset is not None:
            self._agree_on_rows()
        as_arguments(self.args)
        self._check_libraries(method, training=method == "train")
        self._keep_paths()
        self.model.check_as_given(f"Trainer.{method}", method == "train")
        self.model.take_changed_weights()
        values = self.args.settled_values()
        changed = [name for name in values if not is_same(values[name], self._planned[name])]
        made_with = _OF_CONSTRUCTION if self.uploads is None else (*_OF_CONSTRUCTION, *_OF_UPLOADS)
        fixed = [f"{name} from {self._planned[name]!r} to {values[name]!r}"
                 for name in changed if name in made_with]  # fmt: skip
        if fixed:
            raise ValueError(
                f"Trainer.{method}: args changed after the Trainer was made: {', '.join(fixed)}; its engine "
                "is made for the old values: set them back, or change them before Trainer(args=...)"
            )
        check_metrics(self.args, self.compute_metrics)
        if not changed:
            return
        if "output_dir" in changed:
            prepare_output_directory(self.model.source_directory, self.args.output_dir or ".")
        if self._train_dataset is not None:
            self._plan_again(self.train_rows)
        self._planned = values

    def _check_libraries(self, method: str, *, training: bool) -> None:
        """ValueError for functions of libraries that a script replaced, and that nothing calls here."""
        has_collator = self._data_collator is not None
        caller = f"Trainer.{method}" if method else "Trainer"
        if training:
            check_accelerate_state(self.args, caller)
        check_patched_functions(self.args, caller, training=training, has_collator=has_collator)


class _Trains(Protocol):
    is_in_train: bool


def check_not_training(trainer: _Trains, name: str) -> None:
    """ValueError while `trainer` trains: the epoch that runs is cut by the old plan."""
    if trainer.is_in_train:
        raise ValueError(
            f"Trainer.{name}: cannot be set while train() runs, which is planned with the old one; set it "
            "before train(), or hand data to evaluate(eval_dataset)"
        )
