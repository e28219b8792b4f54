"""Read-only views that callbacks get instead of transformers' optimizer, schedule and data loaders."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from fastsft import _C
from fastsft.arguments.engine_flags import optimizer_of

# Settings in the param_groups of optimizers without betas, under the names of the original classes.
_OWN: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0, "dampening": 0, "nesterov": False},
    "adafactor": {
        "eps": (1e-30, 1e-3), "clip_threshold": 1.0, "decay_rate": -0.8, "beta1": None,
        "scale_parameter": False, "relative_step": False, "warmup_init": False,
    },
}  # fmt: skip

if TYPE_CHECKING:
    from fastsft.trainer.run import Run


def event_values(run: Run) -> dict[str, object]:
    """Return the keyword arguments that every event gets: model, tokenizer and read-only views."""
    setup, has_steps = run.setup, run.stepper.schedule is not None
    return {
        "model": setup.model,
        "processing_class": setup.tokenizer,
        "tokenizer": setup.tokenizer,
        "optimizer": OptimizerView(run) if has_steps else None,
        "lr_scheduler": ScheduleView(run) if has_steps else None,
        "train_dataloader": LoaderView(run) if has_steps else None,
        "eval_dataloader": None if run.evaluator.evaluated_rows is None else EvaluationLoaderView(run),
    }


class ReadOnly:
    """Base class of views. Writes raise ValueError, unknown attributes AttributeError, both with advice."""

    _NAME = ""
    _INSTEAD = ""
    _run: Run

    def __init__(self, run: Run) -> None:
        object.__setattr__(self, "_run", run)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self._NAME} has no {name} here; {self._INSTEAD}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ValueError(f"{self._NAME}.{name} cannot be set by a callback; {self._INSTEAD}")

    def __delattr__(self, name: str) -> NoReturn:
        raise ValueError(f"{self._NAME}.{name} cannot be deleted by a callback; {self._INSTEAD}")


class ScheduleView(ReadOnly):
    """View that callbacks get as `lr_scheduler`: the learning rates of the running or last `train`."""

    _NAME = "lr_scheduler"
    _INSTEAD = (
        "it has get_last_lr(): the schedule is the engine's, chosen by lr_scheduler_type, "
        "lr_scheduler_kwargs, learning_rate and warmup_steps"
    )

    def get_last_lr(self) -> list[float]:
        """Return the rate of the next step twice, for the groups with and without weight decay."""
        rate = self._run.stepper.next_rate()
        return [rate, rate]

    def step(self, *_: object, **__: object) -> NoReturn:
        """Raise ValueError, since the engine advances the schedule itself."""
        raise ValueError(f"lr_scheduler.step cannot be called by a callback; {self._INSTEAD}")


class OptimizerView(ReadOnly):
    """View that callbacks get as `optimizer`: two parameter groups, with and without weight decay."""

    _NAME = "optimizer"
    _INSTEAD = (
        "it has param_groups with lr, initial_lr, betas, eps and weight_decay, to read: the optimizer is the "
        "engine's, chosen by learning_rate, weight_decay and the adam arguments; or train with "
        "transformers' Trainer"
    )

    @property
    def param_groups(self) -> tuple[Group, ...]:
        """Settings of the next step for both groups, in new objects at each access."""
        args = self._run.setup.step_args
        adam = {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
        own = dict(_OWN.get(optimizer_of(args), adam))
        if args.lr_scheduler_type != "reduce_lr_on_plateau":
            own["initial_lr"] = args.learning_rate
        (rate, other), decay = ScheduleView(self._run).get_last_lr(), args.weight_decay
        return Group(own, lr=rate, weight_decay=decay), Group(own, lr=other, weight_decay=0.0)


def _refuse_call(name: str) -> Callable[..., NoReturn]:
    def refuse(self: OptimizerView, *_: object, **__: object) -> NoReturn:
        raise ValueError(f"optimizer.{name} cannot be called by a callback; {self._INSTEAD}")

    return refuse


for _name in ("step", "zero_grad", "state_dict", "load_state_dict", "add_param_group"):
    setattr(OptimizerView, _name, _refuse_call(_name))


class Group(dict[str, Any]):
    """Settings of a parameter group. Writes raise ValueError, unknown names KeyError."""

    def __missing__(self, name: str) -> NoReturn:
        raise KeyError(f"param_groups of the optimizer have no {name} here; {OptimizerView._INSTEAD}")

    def get(self, name: str, default: object = None) -> object:
        """Return a setting like dict.get. KeyError for "params", which groups do not have here."""
        return self[name] if name in self or name == "params" else default

    def _refuse(self, *given: object, **_: object) -> NoReturn:
        name = repr(given[0]) if given and isinstance(given[0], str) else "..."
        raise ValueError(
            f"optimizer.param_groups[...][{name}] cannot be set by a callback; {OptimizerView._INSTEAD}"
        )

    __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = __ior__ = _refuse


class EvaluationLoaderView(ReadOnly):
    """View that callbacks get as `eval_dataloader`: size and data set of the last evaluation, no batches."""

    _NAME = "eval_dataloader"
    _INSTEAD = (
        "it has len() and dataset: the engine reads the rows itself; trainer.get_eval_dataloader() makes a "
        "loader for a script"
    )

    @property
    def dataset(self) -> object:
        """Data set of the evaluation."""
        rows = self._run.evaluator.evaluated_rows
        assert rows is not None  # else there would be no view
        return rows.source

    def __len__(self) -> int:
        """Return this rank's batch count."""
        rows, args = self._run.evaluator.evaluated_rows, self._run.setup.args
        assert rows is not None  # there is a view during an evaluation
        return int(_C.micro_batch_count(rows.num_samples, args.eval_batch_size, args.data_parallel_size))

    def __iter__(self) -> NoReturn:
        raise ValueError(f"eval_dataloader cannot be read by a callback; {self._INSTEAD}")


class LoaderView(ReadOnly):
    """View that callbacks get as `train_dataloader`: sizes and data set, but no batches."""

    _NAME = "train_dataloader"
    _INSTEAD = (
        "it has len(), dataset, batch_size and total_batch_size: the engine reads the rows itself; "
        "trainer.get_train_dataloader() makes a loader for a script"
    )

    @property
    def dataset(self) -> object:
        """Training data set as given."""
        return self._run.setup.train_dataset

    @property
    def batch_size(self) -> None:
        """None, as in transformers, whose data loader has a batch sampler instead of a batch size."""
        return None

    @property
    def total_batch_size(self) -> int:
        """Row count per micro-batch, over all ranks."""
        return int(self._run.setup.args.train_batch_size * self._run.setup.args.data_parallel_size)

    def __len__(self) -> int:
        """Return this rank's micro-batch count per epoch."""
        return int(self._run.planner.plan.micro_batches)

    def __iter__(self) -> NoReturn:
        raise ValueError(f"train_dataloader cannot be read by a callback; {self._INSTEAD}")
