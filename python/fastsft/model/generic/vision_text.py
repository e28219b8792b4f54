"""VisionTextModel: a vision-text directory. Its text decoder is trained, and the rest is saved unchanged."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.model.generic.causal_lm import GenericCausalLM
from fastsft.model.generic.empty_model import empty_of, library_config
from fastsft.model.generic.stored_tensors import WholeModel, as_part
from fastsft.model.model_config import ModelConfig
from fastsft.model.stored_weights import DTYPES, StoredTensor
from fastsft.ranks.process_group import Groups
from fastsft.runtime.regular_files import file_inside, read_text

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Files of the processor, without which transformers does not open a vision-text model.
_PROCESSOR_FILES = (
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "image_processor_config.json",
    "chat_template.json",
)
_SAVED = ("float32", "bfloat16", "float16")  # dtypes in which the engine can save a tensor


class VisionTextModel(GenericCausalLM):
    """The causal language model in `text_config`. Its tensors have the whole vision-text model's

    names.
    """

    def __init__(self, source_directory: Path, config: ModelConfig) -> None:
        super().__init__(source_directory, config)
        self._padding_idx = getattr(self._text_config, "pad_token_id", None)
        self._processor_files = {
            name: read_text(path)
            for name in _PROCESSOR_FILES
            if (path := file_inside(self.source_directory, name)) is not None
        }
        self._keeps_types = True

    def code_files(self) -> dict[str, str]:
        return self._processor_files

    def class_name(self) -> str:
        return type(self._whole.model).__name__

    @property
    def engine_words(self) -> str:
        """The engine's description on the start page, with trained and frozen parameter counts."""
        rest = sum(entry.count for entry in self.carried())
        trained = sum(info.numel for info in self._parameters())
        return (
            f"{super().engine_words}; of {self.class_name()} the text decoder is trained ({trained:,} "
            f"parameters), and the rest is frozen and saved as it is ({rest:,}: {self._parts_of_rest()})"
        )

    def engine_config(self) -> dict[str, Any]:
        """Return the text configuration."""
        config: dict[str, Any] = json.loads(self._text_config.to_json_string(use_diff=False))
        return {**config, "pad_token_id": self._padding_idx, "tie_word_embeddings": self._ties}

    @property
    def _ties(self) -> bool:
        """True if the vision-text model ties its head.

        Tested on the model, because its two configurations may disagree.
        """
        whole = self._whole.model
        heads = [module for name, module in whole.named_modules() if name.rpartition(".")[2] == "lm_head"]
        return len(heads) == 1 and heads[0].weight is whole.get_input_embeddings().weight

    @cached_property
    def _library_config(self) -> PretrainedConfig:
        return library_config(_for_installed(self.config))

    @property
    def _text_config(self) -> PretrainedConfig:
        config: PretrainedConfig = self._library_config.get_text_config()
        return config

    @cached_property
    def _whole(self) -> WholeModel:
        config, kind = self._library_config, transformers.AutoModelForImageTextToText
        made = empty_of(lambda: kind.from_config(config, dtype=torch.float32), "transformers")
        return WholeModel(made, self._in_files)

    def _empty(self, dtype: torch.dtype) -> PreTrainedModel:
        return as_part(super()._empty(dtype), self._whole)

    def _engine_options(self, args: TrainingArguments, groups: Groups, recompute: str) -> dict[str, Any]:
        self._keeps_types = args.save_dtype == "auto"
        return super()._engine_options(args, groups, recompute)

    def _tell_rest(self) -> None:
        pass  # `engine_words` reports the rest on the start page

    def _keep_rest(self, engine: _C.Engine) -> None:
        """Make saves keep a trained tensor's dtype if it differs from the most frequent dtype."""
        super()._keep_rest(engine)
        for name, in_file in self._match.names.items() if self._keeps_types else ():
            dtype = DTYPES.get(self._files.tensors[in_file].dtype)
            if dtype in _SAVED and dtype != self.weights_dtype():
                _C.save_in_own_type(engine, name, dtype)

    def carried(self) -> list[StoredTensor]:
        return super().carried() if self._in_files else []

    @cached_property
    def _in_files(self) -> frozenset[str]:
        """Tensor names in the files; empty if there is only a configuration, as when a run is planned."""
        try:
            return frozenset(self._files.tensors)
        except ValueError:
            return frozenset()

    def _parts_of_rest(self) -> str:
        """List the modules with tensors that are not trained, such as model.vision_tower."""
        paths = (self._whole.name_in_memory(entry.name).split(".")[:2] for entry in self.carried())
        return ", ".join(dict.fromkeys(".".join(path) for path in paths)) or "nothing"


def _for_installed(config: ModelConfig) -> dict[str, Any]:
    """Return `config`, with the text configuration in the installed transformers' keys."""
    text, is_older = config.get("text_config"), int(transformers.__version__.split(".")[0]) < 5
    if (
        not is_older
        or not isinstance(text, dict)
        or "rope_parameters" not in text
        or "model_type" not in text
    ):
        return config
    return {**config, "text_config": library_config(text).to_dict()}
