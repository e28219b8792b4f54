"""A model that transformers has loaded, trained by its own forward and backward."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fastsft.model.alterations.wrappers import check_head, check_quantised
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
    """`module`, any causal language model of transformers, wherever its parameters are.

    The engine computes with a copy of its modules as they are when the engine is built: hooks, replaced
    methods and other settings of theirs count.
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
        """ValueError for a module that cannot be trained as it is now."""
        self._check_module(self.module)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """As LoadedModel's, by the names that the module has."""
        stored = super().state_dict()
        found = {}
        for name, (shape, parts) in self._stored.items():
            if len(parts) == 1:
                found[name] = stored[parts[0].name]
                continue
            found[name] = torch.empty(shape, dtype=stored[parts[0].name].dtype)
            for part in parts:
                part.part_of(found[name]).copy_(stored[part.name])
        return found

    def _given_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from super()._given_tensors()
        placed = (one for unit in self._plain.units for one in unit.parameters)
        yield from ((one.name, self.module.get_buffer(one.name)) for one in placed if one.buffer is not None)

    def _new_engine(self, options: dict[str, Any]) -> _C.Engine:
        """With the integer buffers of the module, which are saved with the model."""
        for one in (each for unit in self._plain.units for each in unit.parameters if not each.tensors):
            raise ValueError(
                f"Trainer: {one.name} of the model is a part of {one.stored[0].name} of its files; save the "
                "model with save_pretrained, and give its directory"
            )
        engine = super()._new_engine(options)
        for name, in_files in buffer_names(self.module).items():
            carry_value(engine, in_files, self.module.get_buffer(name))
        return engine

    def _empty(self, dtype: torch.dtype) -> PreTrainedModel:
        made = empty_copy(self.module, dtype)
        check_model(made)
        if dtype != torch.float32:
            self._set_buffers(made, dtype)
        made.train()
        return made

    def _set_buffers(self, made: PreTrainedModel, dtype: torch.dtype) -> None:
        """As a model of the same configuration has them that is made with weights of `dtype`."""
        kind, config, before = type(self.module), copy.deepcopy(self.module.config), torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            set_buffers(made, empty_of(lambda: kind(config), kind.__name__))
        except ValueError:  # a class that a configuration alone does not make
            return
        finally:
            torch.set_default_dtype(before)

    def _why_padded(self) -> str | None:
        return why_padded(self._small, self._plain.model)

    def _find_unreached(self, model: PreTrainedModel) -> Unreached:
        return find_unreached(self._small, model, is_given=True)

    def _small(self, config: dict[str, Any]) -> PreTrainedModel:
        """A model of the module's class. NotPackedError for a module that is not as its class makes it."""
        kind, configuration = type(self.module), type(self.module.config)
        made = empty_of(lambda: kind(configuration.from_dict(config)), kind.__name__)
        if own_parts(self.module, made):
            raise NotPackedError("it has hooks, methods or modules of its own")
        return made


def own_parts(module: nn.Module, plain: nn.Module) -> bool:
    """True if `module` has what one of its class, such as `plain`, does not have when it is made."""
    kinds = {type(each) for each in plain.modules()}
    return any(type(each) not in kinds or _is_changed(each) for each in module.modules())


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
    """`module` with everything it holds, and parameters on the meta device; buffers are copied."""
    memo: dict[int, object] = {}
    for parameter in module.parameters():
        there = torch.empty(parameter.shape, dtype=dtype, device="meta")
        memo[id(parameter)] = nn.Parameter(there, requires_grad=parameter.requires_grad)
    return copy.deepcopy(module, memo)


def set_buffers(model: PreTrainedModel, made: PreTrainedModel) -> None:
    """Floating-point buffers of `model` in the formats of those of `made`, the same model with its weights in
    another format; a buffer that `made` does not have stays as it is."""
    formats = {name: buffer.dtype for name, buffer in made.named_buffers() if buffer.is_floating_point()}
    for place, module in model.named_modules():
        for name, buffer in module._buffers.items():
            wanted = formats.get(f"{place}.{name}" if place else name)
            if buffer is not None and buffer.is_floating_point() and wanted is not None:
                module._buffers[name] = buffer.to(wanted)
