"""Changes that callbacks make, looked at after each event: taken over, or refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastsft.originals.patched_functions import places_of
from fastsft.originals.places import Places
from fastsft.runtime.launch import launch
from fastsft.trainer.callback_handler import STOPS
from fastsft.trainer.preflight import check_again, has_own_names, names_of_classes

if TYPE_CHECKING:
    from fastsft.trainer.running import Running

# The rows of a running train() are cut and ordered by these.
_OF_THE_ROWS = (
    "gradient_accumulation_steps", "per_device_train_batch_size", "dataloader_drop_last",
    "train_sampling_strategy", "group_by_length",
)  # fmt: skip
# Events after which the class is looked at, too: one a step, as it costs more.
_WITH_CLASSES = ("on_train_begin", "on_step_begin", "on_evaluate")
# ... and functions of libraries: before the passes, before the update, and before what follows them.
_WITH_LIBRARIES = (*_WITH_CLASSES, "on_pre_optimizer_step", "on_step_end")
_AFTER_THE_STEPS = ("on_train_end", "on_train_stopped")
# Events before which passes or an evaluation may have gone through the modules, and after which they may.
_WITH_MODULES = ("on_step_begin", "on_substep_end", "on_prediction_step")
_WITHIN_A_STEP = ("on_substep_end", "on_pre_optimizer_step")


class EventChecks:
    """Those of one train(); made when it begins."""

    def __init__(self, trainer: Running) -> None:
        self._trainer = trainer
        self._classes = names_of_classes(trainer)
        self._places = self._looked_at()
        # About a stop that cannot be followed, until all ranks hear of it; one rank raises it at once.
        self.refused: str | None = None
        self._rows = {name: getattr(trainer.args, name) for name in _OF_THE_ROWS}

    def after(self, event: str) -> None:
        """ValueError for what cannot be followed while train() runs."""
        if event in _AFTER_THE_STEPS:
            return
        trainer = self._trainer
        self._check_rows(event)
        if event in _WITH_MODULES:
            trainer.model.check_unaltered(f"Trainer.train, after {event}")
        if event == "on_step_begin":
            trainer.model.check_no_gradients("Trainer.train")
        if event == "on_substep_end":
            self._check_stops()
        if event in _WITHIN_A_STEP:
            trainer.model.check_unwritten(event)
        if event in _WITH_LIBRARIES and (self._places.changed() or trainer.model.library_has_changed()):
            self._check_libraries()
        if has_own_names(trainer) or (event in _WITH_CLASSES and self._classes != names_of_classes(trainer)):
            check_again(trainer)

    def _check_libraries(self) -> None:
        self._trainer._check_libraries("train", training=True)
        self._trainer.model.check_as_given("Trainer.train", True)
        self._places = self._looked_at()

    def _looked_at(self) -> Places:
        return places_of(self._trainer.args, has_collator=self._trainer.data_collator is not None)

    def _check_rows(self, event: str) -> None:
        for name, value in self._rows.items():
            now = getattr(self._trainer.args, name)
            if now != value:
                raise ValueError(
                    f"a callback's {event} changed args.{name} from {value!r} to {now!r}: the rows of this "
                    "train() are planned with the old value; set it before train(), or before Trainer()"
                )

    def _check_stops(self) -> None:
        """A stop that was set before on_substep_end is another matter: the step is left out, or goes on."""
        for name, callback in self._trainer.callbacks.set_by.items():
            if name in STOPS:
                self.refused = (
                    f"control.{name} is set by {callback} at on_substep_end: the engine computes all "
                    "micro-batches of a step at once, and cannot stop between them; set it in on_step_end"
                )
        if self.refused is not None and launch().world_size == 1:
            raise ValueError(self.refused)
