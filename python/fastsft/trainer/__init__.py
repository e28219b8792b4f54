"""The training loop and the parts of `fastsft.Trainer`."""

from typing import TYPE_CHECKING

from fastsft.runtime.imports import lazy_names

if TYPE_CHECKING:
    from fastsft.trainer.trainer import Trainer

__all__ = ["Trainer"]
__getattr__ = lazy_names(__name__, {"Trainer": "trainer"})
