"""A model that answers questions: a model directory, or an adapter merged into its base model in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.lora.adapter_files import CONFIG_NAME
from fastsft.lora.merge import MergedModel
from fastsft.runtime.regular_files import file_inside

if TYPE_CHECKING:
    from fastsft.model.generation import ChatModel


def open_chat_model(directory: str | Path, base: str | Path | None = None, **options: Any) -> ChatModel:
    """The ChatModel of `directory`; `options` are ChatModel's.

    base: of an adapter, a model directory or hub name; by default the one that adapter_config.json names.
    The tokenizer, with the trained chat template, is the adapter's where its directory has one. ValueError
    for a `base` of a whole model, an adapter that does not fit its base, and as ChatModel.
    """
    from fastsft.model.generation import ChatModel

    whole = file_inside(directory, "config.json") is not None
    if whole or file_inside(directory, CONFIG_NAME) is None:
        if base is not None:
            raise ValueError(
                f"--base-model-path: {directory} has no adapter, so there is no base; leave it out"
            )
        return ChatModel(directory, **options)
    merged = MergedModel.open(directory, base)
    return ChatModel(merged.source, tokenizer=merged.tokenizer_directory, change=merged.merged, **options)
