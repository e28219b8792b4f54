"""The state of a run, and the events that callbacks get."""

from fastsft.callbacks.callback import TrainerCallback, TrainerControl
from fastsft.callbacks.state import TrainerState

__all__ = ["TrainerCallback", "TrainerControl", "TrainerState"]
