"""FastChat's argument classes with the names and defaults of transformers, old and new.

One file a subject: its fields and the rules that settle them. `treatment` applies what each field says about
itself; `training` puts them together.
"""

from fastsft.arguments.data import DataArguments
from fastsft.arguments.lora import LoraArguments
from fastsft.arguments.model import ModelArguments
from fastsft.arguments.training import TrainingArguments

__all__ = ["DataArguments", "LoraArguments", "ModelArguments", "TrainingArguments"]
