"""A model whose class is code of its directory, which --trust_remote_code True runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastsft.model.generic.causal_lm import GenericCausalLM
from fastsft.model.generic.empty_model import FAULTS, empty_of, first_line, library_config
from fastsft.model.model_config import ModelConfig
from fastsft.model.remote_code import CONFIG, MODEL, code_file
from fastsft.runtime.regular_files import file_inside, read_text

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


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
