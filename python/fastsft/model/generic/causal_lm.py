"""A model directory that is trained by transformers' own forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastsft.model.family import CONFIG, MODEL, code_file
from fastsft.model.generic.base import GenericBase, check_config
from fastsft.model.generic.empty_model import FAULTS, empty_model, empty_of, first_line, library_config
from fastsft.model.generic.packing_trial import why_padded
from fastsft.model.generic.stored_tensors import integer_buffers
from fastsft.model.generic.unreached import Unreached, find_unreached
from fastsft.model.generic.weights import (
    SortedNames,
    carry_from_files,
    load_generic_weights,
    sort_names,
    tell_rest,
)
from fastsft.model.model_config import ModelConfig
from fastsft.model.stored_weights import StoredTensor, StoredWeights
from fastsft.runtime.regular_files import file_inside, read_text

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from fastsft import _C


class GenericCausalLM(GenericBase):
    """Any causal language model of transformers; shards, optimizer, checkpoints and loop are the engine's."""

    def __init__(self, source_directory: Path, config: ModelConfig) -> None:
        super().__init__(source_directory, config)
        check_config(config, str(self.source_directory / "config.json"))

    def load_weights(self, engine: _C.Engine) -> None:
        """Fill the engine with the weights of the directory; collective."""
        plain = self._plain
        load_generic_weights(engine, plain.model, plain.units, self.source_directory)
        self._keep_rest(engine)

    def _put_weights(self, engine: _C.Engine, weights: Mapping[str, torch.Tensor]) -> None:
        super()._put_weights(engine, weights)
        self._keep_rest(engine)

    def _empty(self, dtype: torch.dtype) -> PreTrainedModel:
        return self._made(self.engine_config(), dtype)

    def _made(self, config: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
        return empty_model(config, dtype)

    def _why_padded(self) -> str | None:
        return why_padded(lambda config: self._made(config, torch.float32), self._plain.model)

    def _find_unreached(self, model: PreTrainedModel) -> Unreached:
        return find_unreached(lambda config: self._made(config, torch.float32), model)

    @cached_property
    def _files(self) -> StoredWeights:
        return StoredWeights(self.source_directory)

    @cached_property
    def _sorted(self) -> SortedNames:
        return sort_names(self._plain.model, self._plain.units, self._files.tensors)

    def _filled(self, model: PreTrainedModel) -> PreTrainedModel:
        """With the integer buffers of the files."""
        for name in integer_buffers(model):
            if name not in self._sorted.buffers:
                raise ValueError(f"{self.source_directory}: missing: {name}")
            model.get_buffer(name).copy_(self._files.read_any(self._sorted.buffers[name]))
        return model

    def _keep_rest(self, engine: _C.Engine) -> None:
        """Save the tensors of the directory that the engine does not hold with its model."""
        self._tell_rest()
        if self.adapter_bytes() is None:
            carry_from_files(engine, self._files, [each.name for each in self.carried()])

    def _tell_rest(self) -> None:
        tell_rest(self._sorted.carried, self._sorted.ignored, type(self._plain.model).__name__)

    def carried(self) -> list[StoredTensor]:
        """As CausalLM's."""
        names = [*self._sorted.carried, *self._sorted.buffers.values()]
        return [self._files.tensors[name] for name in names]


class TrustedCausalLM(GenericCausalLM):
    """As transformers opens it with trust_remote_code; the code is saved with the model."""

    runs_code = True

    def __init__(self, source_directory: Path, config: ModelConfig) -> None:
        super().__init__(source_directory, config)
        self._code = code_of(self.source_directory, config["auto_map"])

    def code_files(self) -> dict[str, str]:
        """As CausalLM's."""
        return self._code

    def _made(self, config: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        classes = self.config["auto_map"]
        folder = str(self.source_directory)
        try:
            if CONFIG in classes:
                kind: type[PretrainedConfig] = get_class_from_dynamic_module(classes[CONFIG], folder)
                made = kind.from_dict({**config, "use_cache": False})
            else:
                made = library_config(config)
            model: type[PreTrainedModel] = get_class_from_dynamic_module(classes[MODEL], folder)
        except FAULTS as error:
            raise ValueError(
                f"{folder}: the code that config.json names in auto_map fails: {first_line(error)}"
            ) from error
        return empty_of(lambda: model._from_config(made, torch_dtype=dtype), f"the code of {folder}")


def code_of(directory: Path, classes: dict[str, Any]) -> dict[str, str]:
    """The Python files of a directory that the classes of auto_map are in, and those that they import of it.

    ValueError for one that is not there, or that is no regular file of the directory.
    """
    from transformers.dynamic_module_utils import get_relative_imports

    found: dict[str, str] = {}
    names = [file for each in classes.values() if (file := code_file(each)) is not None]
    while names:
        name = names.pop()
        path = file_inside(directory, name)
        if name in found or path is None:
            continue
        found[name] = read_text(path)
        names += [f"{each}.py" for each in get_relative_imports(path)]
    return found
