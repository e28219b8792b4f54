"""Names of transformers' Trainer that scripts ask for though nothing of the kind is here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from fastsft.arguments import TrainingArguments
from fastsft.model.card import write_model_card
from fastsft.trainer.callback_views import OptimizerView, ReadOnly, ScheduleView, ViewedTrainer

if TYPE_CHECKING:
    from fastsft.callbacks.state import TrainerState
    from fastsft.model.causal_lm import CausalLM

_STEP = "the step is the engine's; loss, optimizer and schedule are chosen by the arguments"
_INSTEAD = {
    "hyperparameter_search": "start a run for each setting",
    "create_optimizer": _STEP,
    "create_scheduler": _STEP,
    "create_optimizer_and_scheduler": _STEP,
    "compute_loss": f"{_STEP}; evaluate() gives the loss",
    "training_step": _STEP,
    "prediction_step": "predict() gives the logits",
    "evaluation_loop": "evaluate() and predict() do its work",
    "prediction_loop": "evaluate() and predict() do its work",
    "init_hf_repo": "--push_to_hub True makes the repository when the Trainer is made",
}


R = TypeVar("R", bound=ReadOnly)


class _View(Generic[R]):
    """An attribute of a Trainer: None until the first `train`, then a view to read from; may be hidden."""

    def __init__(self, kind: type[R]) -> None:
        self._kind = kind

    def __get__(self, trainer: ViewedTrainer | None, _: type) -> R | None:
        if trainer is None or trainer.schedule is None:
            return None
        return self._kind(trainer)


class TrainerNames:
    """No optimizer and no scheduler but views of them, no DeepSpeed engine; a part of Trainer."""

    args: TrainingArguments
    state: TrainerState
    model: CausalLM
    train_dataset: object
    is_world_process_zero: Callable[[], bool]
    optimizer = _View(OptimizerView)
    lr_scheduler = _View(ScheduleView)
    model_init: None = None
    compute_loss_func: None = None
    optimizer_cls_and_kwargs: None = None

    @property
    def deepspeed(self) -> bool | None:
        """True with --deepspeed, where scripts then call `save_model()`; else None."""
        return True if self.args.deepspeed_plan is not None else None

    def create_model_card(self, *_: object, **__: object) -> None:
        """Write README.md into `output_dir`, on rank 0, unless there is one; arguments have no effect."""
        if self.is_world_process_zero():
            write_model_card(self, Path(self.args.output_dir or "."))

    if not TYPE_CHECKING:  # a type checker is to find names that are not there

        def __getattr__(self, name: str) -> NoReturn:
            """AttributeError, with what there is instead."""
            instead = _INSTEAD.get(name, "docs/trainer.md lists what it has")
            raise AttributeError(f"fastsft's Trainer has no {name}; {instead}")
