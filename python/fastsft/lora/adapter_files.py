"""Adapters in peft's format: adapter_config.json, and adapter_model.safetensors or .bin.

In the files, tensors have peft's names. In memory they have the engine's names, which are the base model's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.lora.settings import LoraSettings
from fastsft.lora.targets import Targets, with_unique_patterns
from fastsft.model.config import json_text
from fastsft.model.generic.peft_names import without_layers
from fastsft.model.stored_weights import DTYPES, as_tensor, bits_of, stored_dtype
from fastsft.model.weights import pickled_tensors
from fastsft.runtime.near_names import missing_hint
from fastsft.runtime.regular_files import file_inside, read_json_object
from fastsft.runtime.ways_out import way_out

if TYPE_CHECKING:
    import torch

    from fastsft import _C

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
PICKLED_NAME = "adapter_model.bin"
# Frozen tensors that peft saves with the adapter if the head has an adapter, or if the vocabulary was
# resized.
EXTRA_TENSORS = ("lm_head.weight", "model.embed_tokens.weight")
PREFIX = "base_model.model."
_ADAPTER_PARTS = (".lora_A.weight", ".lora_B.weight")
_HEADER_BYTES = 1 << 20
_SHOWN = 3


class AdapterDirectory:
    """A saved adapter, opened for reading.

    settings: the saved LoraConfig. shapes: tensor shapes, by the engine's names. ValueError for a directory
    without an adapter, for a LoraConfig that fastsft does not compute, and for tensor names that are not
    peft's.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        config = file_inside(self.directory, CONFIG_NAME) if self.directory.is_dir() else None
        if config is None:
            raise ValueError(
                f"{self.directory}: expected a directory with {CONFIG_NAME}, as peft and fastsft save "
                f"adapters, found none{_instead(self.directory)}"
            )
        with way_out("correct it, or copy or download the adapter again"):
            self.settings = LoraSettings.from_config(read_json_object(config), str(config))
            self.file = self._find()
            self._content = self._open()
            self._index()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all tensors by peft's names, in the file's dtypes."""
        return {in_file: self.stored(name) for name, in_file in self._names.items()}

    def replace(self, tensors: dict[str, torch.Tensor]) -> None:
        """Use `tensors`, by peft's names, instead of those in the file."""
        self._content = tensors
        self._index()

    def _index(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._names: dict[str, str] = {}
        for in_file, shape in self._entries():
            name = name_in_engine(in_file)
            if name is None or name in self.shapes:
                raise ValueError(
                    f"{self.file}: {in_file}: expected names that begin with base_model.model., each once, "
                    "as peft saves them"
                )
            self.shapes[name], self._names[name] = shape, in_file

    def _find(self) -> Path:
        for name in (WEIGHTS_NAME, PICKLED_NAME):
            if (path := file_inside(self.directory, name)) is not None:
                return path
        raise ValueError(
            f"{self.directory}: expected {WEIGHTS_NAME} or {PICKLED_NAME}, found neither; copy "
            "or download the adapter again"
        )

    def _open(self) -> dict[str, torch.Tensor] | _C.SafetensorsReader:
        from fastsft import _C

        if self.file.suffix == ".bin":
            return dict(pickled_tensors(self.file))
        return _C.SafetensorsReader(str(self.file))

    def _entries(self) -> Iterable[tuple[str, tuple[int, ...]]]:
        if isinstance(self._content, dict):
            return [(name, tuple(value.shape)) for name, value in self._content.items()]
        return [(entry.name, tuple(entry.shape)) for entry in self._content.tensors]

    def check(self, targets: Targets) -> None:
        """Raise ValueError unless the file has the tensors in `targets`, and besides at most
        EXTRA_TENSORS.
        """
        expected = targets.shapes()
        missing = [name for name in expected if name not in self.shapes]
        unknown = [name for name in self.shapes if name not in expected and name not in EXTRA_TENSORS]
        for problem, names in (("has no", missing), (f"{CONFIG_NAME} next to it has no place for", unknown)):
            if names:
                rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                shown = f"{', '.join(names[:_SHOWN])}{rest}{_release_hint(names, targets)}"
                raise ValueError(
                    f"{self.file}: {problem} {shown}; are {CONFIG_NAME} and the base model those that it was "
                    "trained with?"
                )
        for name, shape in expected.items():
            if self.shapes[name] != shape:
                raise ValueError(
                    f"{self.file}: {name}: expected shape {list(shape)} by {CONFIG_NAME} and the base model, "
                    f"got {list(self.shapes[name])}; name the base model that it was trained with"
                )

    def replaced(self, targets: Targets) -> list[str]:
        """Return the frozen tensors' names in the file, which replace the base model's."""
        expected = targets.shapes()
        return [name for name in self.shapes if name not in expected]

    def check_replaced(self, targets: Targets, base: Mapping[str, Sequence[int]], where: str) -> None:
        """Raise ValueError if the frozen tensors in the file do not have the base model's shapes.

        base: the base model's shapes, by name. where: the base model's name, for the message.
        """
        for name in self.replaced(targets):
            if name in base and tuple(base[name]) != self.shapes[name]:
                rows = self.shapes[name][0]
                raise ValueError(
                    f"{self.file}: {name}: expected shape {list(base[name])} of the base model {where}, got "
                    f"{list(self.shapes[name])}: the adapter was trained with another vocabulary; call "
                    f"resize_token_embeddings({rows}) of the base model with transformers, save it, and name "
                    "that directory as base model"
                )

    def read(self, name: str) -> torch.Tensor:
        """Read a tensor, by the engine's name, in float32. ValueError if it is not floating-point."""
        return self.stored(name).float()

    def stored(self, name: str) -> torch.Tensor:
        """Read a tensor, by the engine's name, in the file's dtype."""
        in_file = self._names[name]
        if isinstance(self._content, dict):
            value = self._content[in_file].detach()
        else:
            entry = next(entry for entry in self._content.tensors if entry.name == in_file)
            if entry.dtype not in DTYPES:
                raise ValueError(
                    f"{self.file}: {in_file}: expected one of {', '.join(DTYPES)}, got {entry.dtype}"
                )
            value = as_tensor(self._content.bytes(in_file), entry.dtype).reshape(self.shapes[name])
        if not value.is_floating_point():
            raise ValueError(f"{self.file}: {in_file}: expected a floating-point type, got {value.dtype}")
        return value.contiguous()


def _instead(directory: Path) -> str:
    if (directory / "config.json").is_file():
        return "; it is a whole model, which needs no merging and is trained on as --model_name_or_path"
    if directory.is_dir():
        return "; copy it there, too, or name the directory that a run with --lora True has written"
    if directory.is_file():
        return f": it is a file; name its directory, {directory.parent}"
    return f": there is no such directory{missing_hint(directory, directories=True)}"


def _release_hint(names: Iterable[str], targets: Targets) -> str:
    """Return a hint for the error message if the adapters are of experts; else "".

    Transformers releases differ in the layers of experts.
    """
    has_experts = any(adapter.experts for adapter in targets.adapters)
    if not has_experts and not any(".experts." in name for name in names):
        return ""
    return (
        "; transformers 4 has a linear layer for each expert, transformers 5 one parameter for all: train "
        "and merge adapters of experts with the release that they were made with"
    )


def adapter_config_text(settings: LoraSettings) -> str:
    """Return adapter_config.json's text."""
    return json_text(settings.to_config())


def write_adapter(
    directory: str | Path,
    settings: LoraSettings,
    targets: Targets,
    values: Mapping[str, torch.Tensor],
    extra: Mapping[str, torch.Tensor] | None = None,
) -> list[_C.FileDigest]:
    """Write adapter_model.safetensors and adapter_config.json, and sync them to disk. Return their digests.

    values: all trained tensors by the engine's names; written in float32. extra: frozen tensors that differ
    from the base model's; written in their own dtypes.

    If several keys in a rank or alpha pattern match a module, the pattern is written with one key for each
    module: JSON files sort keys, and peft uses the first key that matches.
    """
    from fastsft import _C

    config = _C.write_file(
        str(Path(directory) / CONFIG_NAME), adapter_config_text(with_unique_patterns(settings, targets))
    )
    named = {name_in_file(name, targets): values[name].detach().float() for name in targets.shapes()}
    named |= {name_in_file(name, targets): value.detach() for name, value in (extra or {}).items()}
    specs = [
        _C.TensorSpec(name, stored_dtype(named[name]), list(named[name].shape)) for name in sorted(named)
    ]
    writer = _C.SafetensorsWriter(str(Path(directory) / WEIGHTS_NAME), specs, {"format": "pt"})
    for name in sorted(named):
        writer.write(bytes(bits_of(named[name].cpu().contiguous())))
    return [config, writer.finish()]


def name_in_file(name: str, targets: Targets) -> str:
    """Return a tensor's name in peft's files, such as `base_model.model.model...q_proj.lora_A.weight`.

    peft replaces an adapted module with a wrapper that holds the module as `base_layer`. A module with
    several adapters has nested wrappers.
    """
    module, _, parameter = name.rpartition(".")
    layers = sum(module == adapter.layer for adapter in targets.adapters)
    return f"{PREFIX}{module}{'.base_layer' * layers}.{parameter}"


def name_in_engine(name: str) -> str | None:
    """Return the engine's name for a name in peft's files; None for a name without peft's prefix."""
    if not name.startswith(PREFIX):
        return None
    return without_layers(name.removeprefix(PREFIX))


def is_adapter(name: str) -> bool:
    """Return True for an adapter's A or B, False for a base model's parameter."""
    return name.endswith(_ADAPTER_PARTS)


@dataclass(frozen=True)
class SavedAdapter:
    """A LoRA run's trained tensors when it is saved, by the engine's names, in host memory.

    values: trained tensors, in float32. extra: frozen tensors that differ from the base model's.
    """

    settings: LoraSettings
    targets: Targets
    values: Mapping[str, torch.Tensor]
    extra: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def write(self, directory: str | Path) -> list[_C.FileDigest]:
        """Write the adapter's files into a new directory and sync them to disk. Return their digests."""
        return write_adapter(directory, self.settings, self.targets, self.values, self.extra)


def adapter_bytes(targets: Targets, extra: Mapping[str, torch.Tensor]) -> int:
    """Return the size in bytes of an adapter's files, including an upper bound for their headers."""
    elements = sum(map(math.prod, targets.shapes().values()))
    extra_bytes = sum(value.numel() * value.element_size() for value in extra.values())
    return 4 * elements + int(extra_bytes) + _HEADER_BYTES
