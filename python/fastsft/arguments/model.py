"""FastChat's ModelArguments."""

from __future__ import annotations

from dataclasses import dataclass

from fastsft.arguments.given import RecordsGiven
from fastsft.arguments.support import used


@dataclass
class ModelArguments(RecordsGiven):
    """The model to fine-tune."""

    model_name_or_path: str | None = used("facebook/opt-125m", "directory or hub name")
    trust_remote_code: bool = used(
        False, "run the model class of the directory's own code (auto_map), by the generic engine"
    )
    padding_side: str = used("right", "right; written to the saved tokenizer")
