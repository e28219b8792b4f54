"""FastChat's argument classes with the names and defaults of transformers, old and new.

`*_fields`, `data` and `lora` declare fields by subject, `support` applies the treatment of each field,
`resolve` has the rules across fields, and `training` puts them together.
"""

from fastsft.arguments.data import DataArguments, ModelArguments
from fastsft.arguments.lora import LoraArguments
from fastsft.arguments.training import TrainingArguments

__all__ = ["DataArguments", "LoraArguments", "ModelArguments", "TrainingArguments"]
