"""GenericLoadedModel: a given transformers object in the generic engine."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fastsft.model.alterations.check import check_head, check_quantised
from fastsft.model.generic.base import GenericBase, check_config
from fastsft.model.generic.empty_model import check_model, empty_of
from fastsft.model.generic.packing import NotPackedError
from fastsft.model.generic.packing_trial import why_padded
from fastsft.model.generic.stored_tensors import buffer_names
from fastsft.model.generic.unreached import Unreached, find_unreached
from fastsft.model.generic.weights import carry_value
from fastsft.model.loaded_model import LoadedModel, check_loss_kwargs, check_parameters_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from fastsft import _C


class GenericLoadedModel(GenericBase, LoadedModel):
    """A given object with any causal language model class in transformers, on any device.

    The engine trains a copy of the modules, which includes their hooks and replaced methods.
    """

    def _check_module(self, module: PreTrainedModel) -> None:
        check_quantised(module)
        check_head(module)
        if not hasattr(module, "get_output_embeddings"):
            raise ValueError(
                f"Trainer: expected model to be a causal language model of transformers, got "
                f"{type(module).__name__}; take a wrapper off, or save the model and give its directory"
            )
        check_loss_kwargs(module)
        check_config(module.config.to_dict(), f"{type(module).__name__}.config")
        check_parameters_of(module)

    def check_as_given(self, caller: str, training: bool) -> None:
        self._check_module(self.module)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return all tensors by their names in the module, gathered in float32. Collective."""
        stored = super().state_dict()
        tensors = {}
        for name, (shape, parts) in self._stored.items():
            if len(parts) == 1:
                tensors[name] = stored[parts[0].name]
                continue
            tensors[name] = torch.empty(shape, dtype=stored[parts[0].name].dtype)
            for part in parts:
                part.part_of(tensors[name]).copy_(stored[part.name])
        return tensors

    def _given_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from super()._given_tensors()
        names = [info.name for info in self._parameters() if info.buffer is not None]
        yield from ((name, self.module.get_buffer(name)) for name in names)

    def _new_engine(self, options: dict[str, Any]) -> _C.Engine:
        for info in self._parameters():
            if not info.tensors:
                raise ValueError(
                    f"Trainer: {info.name} of the model is a part of {info.stored[0].name} of its files; "
                    "save the model with save_pretrained, and give its directory"
                )
        engine = super()._new_engine(options)
        for name, in_files in buffer_names(self.module).items():  # integer buffers are in no unit
            carry_value(engine, in_files, self.module.get_buffer(name))
        return engine

    def _empty(self, dtype: torch.dtype) -> PreTrainedModel:
        model = empty_copy(self.module, dtype)
        check_model(model)
        if dtype != torch.float32:
            self._convert_buffers(model, dtype)
        model.train()
        return model

    def _convert_buffers(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        """Convert buffers to the dtypes that they would have if transformers made the model in `dtype`."""
        kind, config, before = type(self.module), copy.deepcopy(self.module.config), torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            twin = empty_of(lambda: kind(config), kind.__name__)
        except ValueError:  # the class needs arguments besides a configuration
            return
        finally:
            torch.set_default_dtype(before)
        dtypes = {name: buffer.dtype for name, buffer in twin.named_buffers() if buffer.is_floating_point()}
        for path, module in model.named_modules():
            for name, buffer in module._buffers.items():
                buffer_dtype = dtypes.get(f"{path}.{name}" if path else name)
                if buffer is not None and buffer.is_floating_point() and buffer_dtype is not None:
                    module._buffers[name] = buffer.to(buffer_dtype)

    def _why_padded(self) -> str | None:
        return why_padded(self._small, self._meta.model)

    def _find_unreached(self, model: PreTrainedModel) -> Unreached:
        return find_unreached(self._small, model, is_given=True)

    def _small(self, config: dict[str, Any]) -> PreTrainedModel:
        """Make a small model with the module's class. NotPackedError if a script has changed the module."""
        kind, configuration = type(self.module), type(self.module.config)
        small = empty_of(lambda: kind(configuration.from_dict(config)), kind.__name__)
        if differs_from_class(self.module, small):
            raise NotPackedError("it has hooks, methods or modules of its own")
        return small


def differs_from_class(module: nn.Module, fresh: nn.Module) -> bool:
    """Return True if `module` has hooks, methods or module classes that `fresh` does not have."""
    kinds = {type(part) for part in fresh.modules()}
    return any(type(part) not in kinds or _is_changed(part) for part in module.modules())


def _is_changed(module: nn.Module) -> bool:
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return any(hooks) or any(
        callable(value) and callable(getattr(type(module), name, None))
        for name, value in vars(module).items()
    )


def empty_copy(module: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Copy `module`, with `dtype` parameters on the meta device."""
    memo: dict[int, object] = {}
    for parameter in module.parameters():
        empty = torch.empty(parameter.shape, dtype=dtype, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    return copy.deepcopy(module, memo)
