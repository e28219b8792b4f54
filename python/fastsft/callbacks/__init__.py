"""A run's state, and the base class of callbacks with its events."""

from fastsft.callbacks.callback import TrainerCallback, TrainerControl
from fastsft.callbacks.state import TrainerState

__all__ = ["TrainerCallback", "TrainerControl", "TrainerState"]
