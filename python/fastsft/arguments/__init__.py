"""FastChat's argument classes, with the names and defaults of transformers' old and new releases.

`*_fields`, `data` and `lora` declare fields by subject. `support` says which fields are supported, ignored or
rejected. `resolve` has the rules between fields, and `training` combines all into TrainingArguments.
"""

from fastsft.arguments.data import DataArguments, ModelArguments
from fastsft.arguments.lora import LoraArguments
from fastsft.arguments.training import TrainingArguments

__all__ = ["DataArguments", "LoraArguments", "ModelArguments", "TrainingArguments"]
