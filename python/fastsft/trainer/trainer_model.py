"""The model of a Trainer, its engine, and its place among the ranks; a part of Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastsft.arguments import TrainingArguments
from fastsft.runtime.launch import launch
from fastsft.trainer.accelerator import Accelerator

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.model.causal_lm import CausalLM


class TrainerModel:
    """The object that users see as the model; its engine is built once."""

    args: TrainingArguments
    _model: CausalLM

    @property
    def model(self) -> CausalLM:
        """The model that was given, as fastsft's. ValueError for another one once the Trainer is made."""
        return self._model

    @model.setter
    def model(self, model: CausalLM) -> None:
        self._check_same(model, "model")
        if not self._is_made():  # of a derived class, which Trainer.__init__ replaces
            self._model = model

    @property
    def model_wrapped(self) -> CausalLM:
        """The model: nothing is wrapped around it. Setting it is as setting `model`."""
        return self.model

    @model_wrapped.setter
    def model_wrapped(self, model: CausalLM) -> None:
        self._check_same(model, "model_wrapped")

    def _is_made(self) -> bool:
        return "callbacks" in vars(self)

    def _check_same(self, model: object, name: str) -> None:
        if not self._is_made() or model is self._model or model is getattr(self._model, "module", None):
            return
        raise ValueError(
            f"Trainer.{name}: expected the model that the Trainer was made with, whose engine is built, got "
            f"another {type(model).__name__}; give it to a new Trainer(model=...), or change the weights of "
            "the model that was given"
        )

    @property
    def engine(self) -> _C.Engine:
        """The native engine of the model, which a later Trainer on the same model replaces."""
        engine = self.model.engine
        assert engine is not None  # built when the Trainer is made
        return engine

    @property
    def accelerator(self) -> Accelerator:
        """The part of accelerate's object that is there: place of the rank, a barrier."""
        return Accelerator(launch(), self.args.device, self.is_fsdp_enabled)

    @property
    def is_deepspeed_enabled(self) -> bool:
        """True if a DeepSpeed file is given; the engine is fastsft's own."""
        return self.args.deepspeed_plan is not None

    @property
    def is_fsdp_enabled(self) -> bool:
        """True if --fsdp asks for sharding."""
        return bool(self.args.fsdp)

    def is_world_process_zero(self) -> bool:
        """True if this is global rank 0, which writes and prints."""
        return self.args.process_index == 0

    def is_local_process_zero(self) -> bool:
        """True if this is the first rank of its machine."""
        return self.args.local_process_index == 0
