"""Model directories in the generic engine, with transformers' own classes or with code in the directory."""

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
    NameMatch,
    carry_from_files,
    load_generic_weights,
    match_names,
    tell_rest,
)
from fastsft.model.model_config import ModelConfig
from fastsft.model.stored_weights import StoredTensor, StoredWeights
from fastsft.runtime.regular_files import file_inside, read_text

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from fastsft import _C


class GenericCausalLM(GenericBase):
    """A model directory for any causal language model that transformers has."""

    def __init__(self, source_directory: Path, config: ModelConfig) -> None:
        super().__init__(source_directory, config)
        check_config(config, str(self.source_directory / "config.json"))

    def load_weights(self, engine: _C.Engine) -> None:
        load_generic_weights(engine, self._meta.model, self._meta.units, self.source_directory)
        self._keep_rest(engine)

    def _put_weights(self, engine: _C.Engine, weights: Mapping[str, torch.Tensor]) -> None:
        super()._put_weights(engine, weights)
        self._keep_rest(engine)

    def _empty(self, dtype: torch.dtype) -> PreTrainedModel:
        return self._make(self.engine_config(), dtype)

    def _make(self, config: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
        return empty_model(config, dtype)

    def _why_padded(self) -> str | None:
        return why_padded(lambda config: self._make(config, torch.float32), self._meta.model)

    def _find_unreached(self, model: PreTrainedModel) -> Unreached:
        return find_unreached(lambda config: self._make(config, torch.float32), model)

    @cached_property
    def _files(self) -> StoredWeights:
        return StoredWeights(self.source_directory)

    @cached_property
    def _match(self) -> NameMatch:
        return match_names(self._meta.model, self._meta.units, self._files.tensors)

    def _filled(self, model: PreTrainedModel) -> PreTrainedModel:
        """Set the model's integer buffers from the weight files."""
        for name in integer_buffers(model):
            if name not in self._match.buffers:
                raise ValueError(f"{self.source_directory}: missing: {name}")
            model.get_buffer(name).copy_(self._files.read_any(self._match.buffers[name]))
        return model

    def _keep_rest(self, engine: _C.Engine) -> None:
        """Make saves copy the directory's tensors that the model does not have, and its integer buffers.

        Print which tensors are copied (`carried`) and which are left out. With adapters, none are copied.
        """
        self._tell_rest()
        if self.adapter_bytes() is None:
            carry_from_files(engine, self._files, [entry.name for entry in self.carried()])

    def _tell_rest(self) -> None:
        tell_rest(self._match.carried, self._match.ignored, type(self._meta.model).__name__)

    def carried(self) -> list[StoredTensor]:
        names = [*self._match.carried, *self._match.buffers.values()]
        return [self._files.tensors[name] for name in names]


class TrustedCausalLM(GenericCausalLM):
    """A model directory whose class is code in the directory.

    --trust_remote_code True runs the code, and a save copies it.
    """

    runs_code = True

    def __init__(self, source_directory: Path, config: ModelConfig) -> None:
        super().__init__(source_directory, config)
        self._code = read_code(self.source_directory, config["auto_map"])

    def code_files(self) -> dict[str, str]:
        return self._code

    def _make(self, config: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
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


def read_code(directory: Path, classes: dict[str, Any]) -> dict[str, str]:
    """Read the Python files that define the classes in auto_map, and the local files that these import.

    Return the files' texts by name. ValueError if a file is not a regular file.
    """
    from transformers.dynamic_module_utils import get_relative_imports

    files: dict[str, str] = {}
    names = [file for reference in classes.values() if (file := code_file(reference)) is not None]
    while names:
        name = names.pop()
        path = file_inside(directory, name)
        if name in files or path is None:
            continue
        files[name] = read_text(path)
        names += [f"{module}.py" for module in get_relative_imports(path)]
    return files
