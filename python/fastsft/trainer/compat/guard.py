"""The guard, which follows or rejects a script's changes to a Trainer, its callbacks and libraries.

A Trainer has a guard unless only fastsft's own program runs (`script_may_run` in runtime/launch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import FunctionType
from typing import TYPE_CHECKING

from fastsft.arguments import TrainingArguments
from fastsft.arguments.from_transformers import sync_from_source
from fastsft.model.causal_lm import CausalLM
from fastsft.originals.classes import LIBRARIES, is_class_of
from fastsft.originals.functions import described, is_written_in, plain
from fastsft.originals.trainer_patches import watched_names
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell, warn_once
from fastsft.trainer.compat.changes import Changes
from fastsft.trainer.compat.overrides import (
    check_again,
    check_autocast,
    check_own_step,
    check_patched_trainer,
    has_own_names,
    names_of_classes,
)
from fastsft.trainer.events import STOPS

if TYPE_CHECKING:
    from fastsft.trainer.events import Events
    from fastsft.trainer.planner import Planner
    from fastsft.trainer.setup import Setup

# Arguments that determine the row order and the division of rows into steps.
_OF_THE_ROWS = (
    "gradient_accumulation_steps", "per_device_train_batch_size", "dataloader_drop_last",
    "train_sampling_strategy", "group_by_length",
)  # fmt: skip
# Events after which the Trainer's classes are checked, too. Only one per step, because the check is slow.
_WITH_CLASSES = ("on_train_begin", "on_step_begin", "on_evaluate")
# Events after which library functions are checked, too.
_WITH_LIBRARIES = (*_WITH_CLASSES, "on_pre_optimizer_step", "on_step_end")
_AFTER_THE_STEPS = ("on_train_end", "on_train_stopped")
# Events after which the modules are checked for patches, since transformers calls the modules then.
_WITH_MODULES = ("on_step_begin", "on_substep_end", "on_prediction_step")
_WITHIN_A_STEP = ("on_substep_end", "on_pre_optimizer_step")
# Events at which parameters have gradients in transformers.
WITH_GRADIENTS = ("on_substep_end", "on_pre_optimizer_step", "on_optimizer_step")
_COUNTING = ("torch.utils.flop_counter",)


def is_opened(model: object, args: object) -> bool:
    """True if fastsft opened `model` from a directory and `args` are fastsft's own TrainingArguments."""
    is_own = isinstance(model, CausalLM) and getattr(model, "module", None) is None
    return is_own and isinstance(args, TrainingArguments) and args._source is None


class ScriptGuard:
    """Checks a script's changes, at each call of a Trainer and after each event of a run.

    trainer: the Trainer. A subclass or a script may have replaced its methods.
    """

    def __init__(self, trainer: object, setup: Setup) -> None:
        self._trainer, self._setup = trainer, setup
        self._changes = Changes(setup)
        self._run: _RunChecks | None = None  # while train() runs
        self.keep_paths = self._changes.keep_paths
        self.note_planned = self._changes.note_planned

    def refused_stop(self) -> str | None:
        """Return the error message about a callback's stop that the run cannot follow; None without a stop.

        With several ranks, the message is kept until all ranks can raise it together.
        """
        return None if self._run is None else self._run.refused_stop

    def check_constructor(self, **given: object) -> None:
        """Raise ValueError for overridden methods and `given` arguments that the engine cannot use."""
        check_own_step(self._trainer, **given)

    def check_libraries(self, *, training: bool) -> None:
        """Raise ValueError if a script has replaced library functions that transformers' Trainer calls."""
        self._changes.check_libraries("Trainer", training=training)

    def before_train(self, planner: Planner, events: Events, trial: object, resume: object) -> None:
        """Check a script's changes to the Trainer and the process; apply changed arguments. Collective."""
        check_again(self._trainer, trial=trial)
        check_patched_trainer()
        check_autocast()
        check_modes()
        events.check_flow()
        self._changes.follow("train", planner, events.callbacks, resume_from_checkpoint=resume)
        tell_callbacks(self._setup.model, events.callbacks)

    def before_evaluation(self, method: str, planner: Planner, events: Events) -> None:
        """Apply changed arguments and weights. While train() runs, apply only changed weights."""
        model = self._setup.model
        if not self._setup.is_training:
            self._changes.follow(method, planner, events.callbacks)
        elif model.engine_owns_weights:
            model.check_unaltered(f"Trainer.{method}")
            model.load_written_weights()
        else:
            model.check_as_given(f"Trainer.{method}", False)
            model.load_changed_weights()

    def begin(self, events: Events) -> None:
        """Begin the checks after each event, when train() begins."""
        self._run = _RunChecks(self._trainer, self._setup, self._changes, events)

    def end(self) -> None:
        """End the checks after each event, when train() is over."""
        self._run = None

    @contextmanager
    def around(self, event: str) -> Iterator[None]:
        """Return a context for the callbacks of `event`, after which their changes are checked and applied.

        If a script's callback handles an event at which parameters have gradients in transformers, access to
        gradients raises an error within the context. Before on_optimizer_step, the weights of the script's
        model are marked as stale. ValueError for changes that train() cannot follow.
        """
        if event == "on_optimizer_step":
            self._setup.model.mark_stale()
        hides = self._run is not None and self._run.has_code_with_gradients(event)
        with self._setup.model.forbid_gradients(event) if hides else nullcontext():
            yield
        sync_from_source(self._setup.args)
        if self._run is not None:
            self._run.after(event)


class _RunChecks:
    """The checks after each event during one call of train().

    refused_stop: the error message that ScriptGuard.refused_stop returns, or None.
    """

    def __init__(self, trainer: object, setup: Setup, changes: Changes, events: Events) -> None:
        self._trainer, self._setup, self._changes, self._events = trainer, setup, changes, events
        self._classes = names_of_classes(trainer)
        self._note_libraries()
        self.refused_stop: str | None = None
        self._rows = {name: getattr(setup.args, name) for name in _OF_THE_ROWS}

    def has_code_with_gradients(self, event: str) -> bool:
        """True if transformers' parameters have gradients at `event`, and a script's callback handles it."""
        return event in WITH_GRADIENTS and any(is_own(item, event) for item in self._events.callbacks)

    def after(self, event: str) -> None:
        """Raise ValueError if callbacks of `event` made a change that the running train() cannot take over.

        After on_step_begin, also set the training mode and load weights that a callback has written.
        """
        if event in _AFTER_THE_STEPS:
            return
        trainer, model = self._trainer, self._setup.model
        self._check_rows(event)
        if event in _WITH_MODULES:
            model.check_unaltered(f"Trainer.train, after {event}")
        if event == "on_step_begin":
            model.check_no_gradients("Trainer.train")
        if event == "on_substep_end":
            self._check_stops()
        if event in _WITHIN_A_STEP:
            model.check_no_writes(event)
        if event in _WITH_LIBRARIES and (self._places.changed() or model.library_has_changed()):
            self._check_libraries()
        if has_own_names(trainer) or (event in _WITH_CLASSES and self._classes != names_of_classes(trainer)):
            check_again(trainer)
        if event == "on_step_begin":
            model.set_mode(training=True)
            model.load_written_weights()

    def _check_libraries(self) -> None:
        self._changes.check_libraries("Trainer.train", training=True)
        self._setup.model.check_as_given("Trainer.train", True)
        self._note_libraries()

    def _note_libraries(self) -> None:
        self._places = watched_names(self._setup.args, has_collator=self._setup.data_collator is not None)

    def _check_rows(self, event: str) -> None:
        for name, value in self._rows.items():
            now = getattr(self._setup.args, name)
            if now != value:
                raise ValueError(
                    f"a callback's {event} changed args.{name} from {value!r} to {now!r}: the rows of this "
                    "train() are planned with the old value; set it before train(), or before Trainer()"
                )

    def _check_stops(self) -> None:
        """Reject a stop that was set at on_substep_end. With one rank, raise ValueError at once."""
        for name, callback in self._events.set_by.items():
            if name in STOPS:
                self.refused_stop = (
                    f"control.{name} is set by {callback} at on_substep_end: the engine computes all "
                    "micro-batches of a step at once, and cannot stop between them; set it in on_step_end"
                )
        if self.refused_stop is not None and launch().world_size == 1:
            raise ValueError(self.refused_stop)


def tell_callbacks(model: object, callbacks: Iterable[object]) -> None:
    """Print a notice if a script's callbacks may read gradients, which the script's model does not have.

    Does nothing unless the script gave a transformers model, whose weights are kept up to date
    (model/live_weights.py).
    """
    if getattr(model, "module", None) is None:
        return
    names = [
        type(each).__name__ for each in callbacks if any(is_own(each, event) for event in WITH_GRADIENTS)
    ]
    if names:
        tell(
            f"callbacks ({', '.join(names)}): the model that was given has no gradients; to ask for "
            "one there is refused"
        )


def is_own(callback: object, event: str) -> bool:
    """True if a script wrote the method `event` of `callback`, and not a library or fastsft."""
    method = plain(getattr(callback, event, None))
    return method is not None and not any(is_written_in(method, library) for library in LIBRARIES)


def check_modes() -> None:
    """Raise ValueError inside a script's own TorchFunctionMode or TorchDispatchMode.

    torch's own modes are allowed, since they change no result. FlopCounterMode causes a warning, because it
    would count nothing.
    """
    check_saved_tensors()
    from torch import overrides
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    function_modes: Callable[[], list[object]] = overrides._get_current_function_mode_stack
    for mode in (*function_modes(), *_get_current_dispatch_mode_stack()):
        if not _is_torchs(type(mode)):
            raise ValueError(
                f"Trainer.train: {described(type(mode))} is on, a mode that torch asks for each "
                "operation and the engine does not; call train() outside of it, or train with transformers' "
                "Trainer"
            )
        if type(mode).__module__ in _COUNTING:
            warn_once("FlopCounterMode counts operations of torch alone, and the engine's step has none")


def check_saved_tensors() -> None:
    """Raise ValueError inside a script's saved_tensors_hooks. torch's own hooks change no result."""
    import torch

    for hook in torch._C._autograd._top_saved_tensors_default_hooks(True) or ():
        if not is_written_in(plain(hook), "torch"):
            raise ValueError(
                f"Trainer.train: saved_tensors_hooks with {described(hook)} are on, which autograd asks for "
                "each tensor that it saves, and the engine saves none there; call train() outside of them, "
                "or train with transformers' Trainer"
            )


def _is_torchs(kind: type) -> bool:
    asked = [getattr(kind, name, None) for name in ("__torch_function__", "__torch_dispatch__")]
    written = [plain(method) for method in asked if isinstance(plain(method), FunctionType)]
    return is_class_of(kind, "torch") and all(is_written_in(method, "torch") for method in written)
