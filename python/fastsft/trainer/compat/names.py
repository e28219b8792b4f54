"""Attributes of transformers' Trainer: values, read-only views, or error messages with advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from fastsft.trainer.compat.views import ReadOnly

if TYPE_CHECKING:
    from fastsft.trainer.setup import Setup

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


class HasSetup(Protocol):
    """An instance of Trainer or a subclass, which has a Setup."""

    _setup: Setup


T = TypeVar("T")
R = TypeVar("R", bound=ReadOnly)


def missing(name: str) -> str:
    """Return the error message about an attribute that fastsft's Trainer does not have."""
    return f"fastsft's Trainer has no {name}; {_INSTEAD.get(name, 'docs/trainer.md lists what it has')}"


class SetupValue(Generic[T]):
    """Descriptor of a Trainer attribute that is stored in the Setup. name: attribute name in the Setup."""

    def __init__(self, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, trainer: None, _: type) -> SetupValue[T]: ...
    @overload
    def __get__(self, trainer: HasSetup, _: type) -> T: ...
    def __get__(self, trainer: HasSetup | None, _: type) -> Any:
        return self if trainer is None else getattr(trainer._setup, self._name)

    def __set__(self, trainer: HasSetup, value: T) -> None:
        setattr(trainer._setup, self._name, value)


class View(Generic[R]):
    """Descriptor of a Trainer attribute that is None until the first `train`, and then a read-only view.

    Unlike a property, the descriptor has no `__set__`, so a script can replace the view by its own value.
    """

    def __init__(self, kind: type[R]) -> None:
        self._kind = kind

    def __get__(self, trainer: object | None, _: type) -> R | None:
        run = None if trainer is None else vars(trainer).get("_run")
        return None if run is None or run.stepper.schedule is None else self._kind(run)
