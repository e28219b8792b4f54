"""An adapter and its base model as one model directory: W + scale B A, summed in float32 and rounded once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.lora.adapter_files import CONFIG_NAME, AdapterDirectory
from fastsft.lora.attach import find_targets
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
    """Write the base model with the adapter merged into it to the directory `target`.

    base: a model directory or hub name; by default the one that adapter_config.json names. dtype: float32,
    bfloat16 or float16; None keeps each tensor's. The tokenizer, with the trained chat template, is the
    adapter's where its directory has one, else the base's; configuration and licence are the base's. One
    tensor of the base is in memory at a time. `target` is new; replaces: as of convert_model. ValueError for
    an adapter that does not fit the base, and as convert_model.
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
    """The base model of the directory `source` with the adapter in its tensors."""

    def __init__(self, adapter: AdapterDirectory, source: Path) -> None:
        model = open_model(str(source))
        targets = find_targets(model, adapter)
        _check_tied(adapter, targets, model.tied_names())
        self.source, self._adapter = source, adapter
        self._names = _names_of_files(model, source)
        self._adapters = {
            name: (each, first)
            for each in targets.adapters
            for name, first in _places_of(each, model).items()
        }
        self._whole = {*targets.trained, *adapter.replaced(targets)}

    @classmethod
    def open(cls, adapter: str | Path, base: str | Path | None = None) -> MergedModel:
        """`adapter` and `base` as of merge_adapter. ValueError where they do not fit together."""
        opened = AdapterDirectory(adapter)
        return cls(opened, _base_directory(opened, base))

    @property
    def tokenizer_directory(self) -> Path:
        """The adapter's directory where it has a tokenizer, else the base's."""
        own = (self._adapter.directory / "tokenizer_config.json").is_file()
        return self._adapter.directory if own else self.source

    def merged(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """The tensor `name` of the base, `value`, as it is in the merged model: float32 where it changes.

        name: of the base's files, or of its model where they differ. float64 stays that.
        ValueError where the adapter has another shape.
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
    """`weight` plus scale * b a, in float32, or float64 for such a weight.

    weight: what `adapter` adapts, or from its element number `first` on a part of it.
    Source: get_delta_weight and merge of peft's Linear and ParamWrapper.
    """
    import torch

    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    experts, size = adapter.experts or 1, adapter.inputs * adapter.outputs
    begin, end = first // size, -(-(first + weight.numel()) // size)  # of the experts that `weight` is of
    each_a = a.float().reshape(experts, adapter.rank, adapter.inputs)[begin:end]
    each_b = b.float().reshape(adapter.outputs, adapter.rank, experts)[..., begin:end].permute(2, 0, 1)
    change = (each_b @ each_a) * adapter.scale
    change = change.mT if adapter.is_transposed else change
    part = change.reshape(-1).narrow(0, first - begin * size, weight.numel())
    return wide + part.view(weight.shape).to(wide.dtype)


def _base_directory(adapter: AdapterDirectory, base: str | Path | None) -> Path:
    named = base if base is not None else adapter.settings.base_model
    if named is None:
        raise ValueError(
            f"{adapter.directory}: its configuration names no base model: give one with --base-model-path"
        )
    try:
        return model_directory(str(named))
    except ValueError as error:
        about = str(error).replace("--model_name_or_path", "").replace("model_name_or_path:", "").strip()
        raise ValueError(f"--base-model-path: {about}") from error


def _places_of(adapter: Adapter, model: CausalLM) -> dict[str, int]:
    """Find the weight that `adapter` changes: its first element in each tensor of memory and files.

    ValueError if files have a matrix in several tensors, or together with others.
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


def _names_of_files(model: CausalLM, source: Path) -> dict[str, str]:
    """Names of tensors in the files of `source` that the model has by other ones."""
    if model.engine_kind == "native":
        return {}
    names = model.stored_form(StoredWeights(source)).names
    return {in_file: name for name, in_file in names.items()}


def _check_tied(adapter: AdapterDirectory, targets: Targets, tied: list[str]) -> None:
    """tied: names of tensors that are another one."""
    touched = {each.weight for each in targets.adapters} | set(adapter.replaced(targets))
    if found := sorted(touched & set(tied)):
        raise ValueError(
            f"{adapter.file}: adapts {found[0].removesuffix('.weight')}, which is tied to the embedding in "
            "this model: it cannot be merged without untying them first"
        )


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
