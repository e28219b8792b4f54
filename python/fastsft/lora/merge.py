"""Merges an adapter into its base model, on disk or for a chat.

The merged weight is W + scale B A, computed in float32 and rounded once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.lora.adapter_files import CONFIG_NAME, AdapterDirectory
from fastsft.lora.attach import find_targets, in_engine_of
from fastsft.lora.targets import Adapter, Targets
from fastsft.model.causal_lm import CausalLM
from fastsft.model.conversion import Converted, Replaces, convert_model
from fastsft.model.engine_choice import open_model
from fastsft.model.model_config import model_directory
from fastsft.model.stored_weights import StoredWeights
from fastsft.runtime.regular_files import file_inside

if TYPE_CHECKING:
    import torch

    from fastsft.model.generation import ChatModel


def merge_adapter(
    adapter: str | Path,
    target: str | Path,
    base: str | Path | None = None,
    *,
    dtype: str | None = None,
    max_shard_size: int = 5_000_000_000,
    replaces: Replaces | None = None,
) -> Converted:
    """Write the merged model, which is the base model with the adapter's changes, to the directory `target`.

    base: model directory or hub name; None for the base model that adapter_config.json names.
    dtype: float32, bfloat16 or float16; None keeps each tensor's dtype.
    max_shard_size, replaces: as in convert_model.

    Tensors are merged one after the other, to save memory. The tokenizer, with the trained chat template,
    comes from the adapter's directory if it has one, else from the base model. Configuration and licence are
    the base model's. ValueError if the adapter does not fit the base model, and as in convert_model.
    """
    merged = MergedModel.open(adapter, base)
    return convert_model(
        merged.source,
        Path(target),
        dtype,
        max_shard_size,
        merged.merged,
        merged.tokenizer_directory,
        replaces=replaces,
    )


class MergedModel:
    """An adapter and its base model, whose directory is `source`. `merged` merges one tensor."""

    def __init__(self, adapter: AdapterDirectory, source: Path) -> None:
        model = in_engine_of(open_model(str(source)), adapter.settings)
        targets = find_targets(model, adapter)
        _check_tied(adapter, targets, model.tied_names())
        self.source, self._adapter = source, adapter
        self._names = _names_in_model(model, source)
        self._adapters = {
            name: (adapter, first)
            for adapter in targets.adapters
            for name, first in _first_elements(adapter, model).items()
        }
        self._whole = {*targets.trained, *adapter.replaced(targets)}

    @classmethod
    def open(cls, adapter: str | Path, base: str | Path | None = None) -> MergedModel:
        """Open an adapter and its base model, as in merge_adapter. ValueError if they do not fit."""
        opened = AdapterDirectory(adapter)
        return cls(opened, _base_directory(opened, base))

    @property
    def tokenizer_directory(self) -> Path:
        """The adapter's directory if it has a tokenizer, else the base model's."""
        own = (self._adapter.directory / "tokenizer_config.json").is_file()
        return self._adapter.directory if own else self.source

    def merged(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Return the merged value for a base model's tensor. A changed tensor is float32 or float64.

        name: the tensor's name in the base model's files or in memory. ValueError if the adapter has another
        shape.
        """
        name = self._names.get(name, name)
        if name in self._whole:
            whole = self._adapter.read(name)
            if whole.shape != value.shape:
                raise ValueError(
                    f"{self._adapter.file}: {name}: expected shape {list(value.shape)} of the base model, "
                    f"got {list(whole.shape)}; merge into the model with the vocabulary that was trained"
                )
            value = whole
        adapter, first = self._adapters.get(name, (None, 0))
        if adapter is None:
            return value
        a, b = (self._adapter.read(part) for part in adapter.shapes())
        return merged_weight(value, adapter, a, b, first)


def merged_weight(
    weight: torch.Tensor, adapter: Adapter, a: torch.Tensor, b: torch.Tensor, first: int = 0
) -> torch.Tensor:
    """Return `weight` + scale * b a, in float64 if `weight` is float64, else in float32.

    weight: the adapted weight, or a part that begins at element `first` in the flat weight. Source:
    get_delta_weight and merge of peft's Linear and ParamWrapper.
    """
    import torch

    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    experts, size = adapter.experts or 1, adapter.inputs * adapter.outputs
    # The experts in `weight`, from `begin` up to but not including `end`.
    begin, end = first // size, -(-(first + weight.numel()) // size)
    expert_a = a.float().reshape(experts, adapter.rank, adapter.inputs)[begin:end]
    expert_b = b.float().reshape(adapter.outputs, adapter.rank, experts)[..., begin:end].permute(2, 0, 1)
    delta = (expert_b @ expert_a) * adapter.scale
    delta = delta.mT if adapter.is_transposed else delta
    part = delta.reshape(-1).narrow(0, first - begin * size, weight.numel())
    return wide + part.view(weight.shape).to(wide.dtype)


def _base_directory(adapter: AdapterDirectory, base: str | Path | None) -> Path:
    named = base if base is not None else adapter.settings.base_model
    if named is None:
        raise ValueError(
            f"{adapter.directory}: its configuration names no base model: give one with --base-model-path"
        )
    if base is not None:
        return model_directory(str(base), flag="--base-model-path")
    try:
        return model_directory(str(named), flag="base_model_name_or_path")
    except ValueError as error:
        raise ValueError(
            f"{adapter.directory}/{CONFIG_NAME}: {error}; --base-model-path says where the base model is"
        ) from None


def _first_elements(adapter: Adapter, model: CausalLM) -> dict[str, int]:
    """Map the tensors that hold the adapted weight to their first element's index in the flat weight.

    The keys are names in memory and in files. ValueError if the files split a linear layer's weight into
    several tensors, or join it with other weights.
    """
    import torch

    weight = torch.empty(adapter.weight_shape(), device="meta")
    parts = list(model.stored_parts(adapter.weight, weight))
    if adapter.experts is None and (len(parts) != 1 or parts[0][1].shape != weight.shape):
        raise ValueError(
            f"{adapter.weight} is not one tensor of the base model's files, so the adapter cannot be merged "
            "into them; merge it with peft's merge_and_unload"
        )
    return {adapter.weight: 0, **{name: int(part.storage_offset()) for name, part in parts}}


def _names_in_model(model: CausalLM, source: Path) -> dict[str, str]:
    """Map tensor names in the files of `source` to the names in the model; empty for a native model."""
    if model.engine_kind == "native":
        return {}
    names = model.stored_form(StoredWeights(source)).names
    return {in_file: name for name, in_file in names.items()}


def _check_tied(adapter: AdapterDirectory, targets: Targets, tied: list[str]) -> None:
    changed = {adapter.weight for adapter in targets.adapters} | set(adapter.replaced(targets))
    if changed_tied := sorted(changed & set(tied)):
        raise ValueError(
            f"{adapter.file}: adapts {changed_tied[0].removesuffix('.weight')}, which is tied to the "
            "embedding in this model: it cannot be merged without untying them first"
        )


def open_chat_model(directory: str | Path, base: str | Path | None = None, **options: Any) -> ChatModel:
    """Open a model directory, or an adapter merged into its base model in memory.

    base: an adapter's base model, as in merge_adapter. options: ChatModel's arguments. ValueError if `base`
    is given without an adapter, if the adapter does not fit, and as in ChatModel.
    """
    from fastsft.model.generation import ChatModel

    is_model = file_inside(directory, "config.json") is not None
    if is_model or file_inside(directory, CONFIG_NAME) is None:
        if base is not None:
            raise ValueError(
                f"--base-model-path: {directory} has no adapter, so there is no base; leave it out"
            )
        return ChatModel(directory, **options)
    merged = MergedModel.open(directory, base)
    return ChatModel(merged.source, tokenizer=merged.tokenizer_directory, change=merged.merged, **options)
