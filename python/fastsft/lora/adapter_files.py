"""A directory of peft's: adapter_config.json, and tensors in adapter_model.safetensors or .bin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.lora.settings import LoraSettings
from fastsft.lora.targets import Targets, settled
from fastsft.model.config import json_text
from fastsft.model.generic.peft_names import without_layers
from fastsft.model.stored_weights import DTYPES, as_tensor, bits_of, stored_dtype
from fastsft.model.weights import pickled_tensors
from fastsft.runtime.regular_files import file_inside, read_json_object

if TYPE_CHECKING:
    import torch

    from fastsft import _C

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
PICKLED_NAME = "adapter_model.bin"
# Frozen tensors of the base model that peft saves with adapters of the head, or of a changed vocabulary.
EXTRA_TENSORS = ("lm_head.weight", "model.embed_tokens.weight")
_SHOWN = 3


class AdapterDirectory:
    """Opened for reading. settings: of its configuration; shapes: of its tensors, by the engine's names.

    ValueError for a directory that is none of peft's, a LoraConfig that fastsft does not compute, and names
    that are not peft's.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        config = file_inside(self.directory, CONFIG_NAME) if self.directory.is_dir() else None
        if config is None:
            raise ValueError(
                f"{self.directory}: expected a directory with {CONFIG_NAME}, as peft and fastsft save "
                "adapters, found none"
            )
        self.settings = LoraSettings.from_config(read_json_object(config), str(config))
        self.file = self._find()
        self._content = self._open()
        self._index()

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of them by peft's names, in the types of the file."""
        return {name: self.stored(ours) for ours, name in self._names.items()}

    def replace(self, tensors: dict[str, torch.Tensor]) -> None:
        """Have these, by peft's names, in place of those of the file."""
        self._content = tensors
        self._index()

    def _index(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._names: dict[str, str] = {}
        for name, shape in self._entries():
            ours = name_in_engine(name)
            if ours is None or ours in self.shapes:
                raise ValueError(
                    f"{self.file}: {name}: expected names that begin with base_model.model., each once, as "
                    "peft saves them"
                )
            self.shapes[ours], self._names[ours] = shape, name

    def _find(self) -> Path:
        for name in (WEIGHTS_NAME, PICKLED_NAME):
            if (path := file_inside(self.directory, name)) is not None:
                return path
        raise ValueError(f"{self.directory}: expected {WEIGHTS_NAME} or {PICKLED_NAME}, found neither")

    def _open(self) -> dict[str, torch.Tensor] | _C.SafetensorsReader:
        from fastsft import _C

        if self.file.suffix == ".bin":
            return dict(pickled_tensors(self.file))
        return _C.SafetensorsReader(str(self.file))

    def _entries(self) -> Iterable[tuple[str, tuple[int, ...]]]:
        if isinstance(self._content, dict):
            return [(name, tuple(value.shape)) for name, value in self._content.items()]
        return [(each.name, tuple(each.shape)) for each in self._content.tensors]

    def check(self, targets: Targets) -> None:
        """ValueError unless the tensors are those of `targets`; a frozen head or embedding may be there."""
        expected = targets.shapes()
        missing = [name for name in expected if name not in self.shapes]
        more = [name for name in self.shapes if name not in expected and name not in EXTRA_TENSORS]
        for problem, names in (("has no", missing), (f"{CONFIG_NAME} next to it has no place for", more)):
            if names:
                rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                shown = f"{', '.join(names[:_SHOWN])}{rest}{_release(names, targets)}"
                raise ValueError(f"{self.file}: {problem} {shown}")
        for name, shape in expected.items():
            if self.shapes[name] != shape:
                raise ValueError(
                    f"{self.file}: {name}: expected shape {list(shape)} by {CONFIG_NAME} and the base model, "
                    f"got {list(self.shapes[name])}"
                )

    def replaced(self, targets: Targets) -> list[str]:
        """Tensors of the base model that the directory has other values for, though they are not trained."""
        expected = targets.shapes()
        return [name for name in self.shapes if name not in expected]

    def check_replaced(self, targets: Targets, base: Mapping[str, Sequence[int]], where: str) -> None:
        """ValueError where `replaced` do not fit the base model `where`, whose shapes are `base`."""
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
        """A tensor by the engine's name, float32, in its own memory. ValueError for a type that none has."""
        return self.stored(name).float()

    def stored(self, name: str) -> torch.Tensor:
        """`read` in the type that the file has."""
        stored = self._names[name]
        if isinstance(self._content, dict):
            value = self._content[stored].detach()
        else:
            entry = next(each for each in self._content.tensors if each.name == stored)
            if entry.dtype not in DTYPES:
                raise ValueError(
                    f"{self.file}: {stored}: expected one of {', '.join(DTYPES)}, got {entry.dtype}"
                )
            value = as_tensor(self._content.bytes(stored), entry.dtype).reshape(self.shapes[name])
        if not value.is_floating_point():
            raise ValueError(f"{self.file}: {stored}: expected a floating-point type, got {value.dtype}")
        return value.contiguous()


def _release(names: Iterable[str], targets: Targets) -> str:
    """The end of a message about tensors that do not fit: a way out for adapters of experts."""
    if not any(each.experts for each in targets.adapters) and not any(".experts." in name for name in names):
        return ""
    return (
        "; transformers 4 has a linear layer for each expert, transformers 5 one parameter for all: train "
        "and merge adapters of experts with the release that they were made with"
    )


def adapter_config_text(settings: LoraSettings) -> str:
    """The content of adapter_config.json."""
    return json_text(settings.to_config())


def write_adapter(
    directory: str | Path,
    settings: LoraSettings,
    targets: Targets,
    values: Mapping[str, torch.Tensor],
    along: Mapping[str, torch.Tensor] | None = None,
) -> list[_C.FileDigest]:
    """Write adapter_model.safetensors and adapter_config.json into a new directory. Their digests.

    values: of everything that is trained, by the engine's names; written as float32. along: frozen tensors
    that the named base model has other values for; written in their own types. Patterns of which keys overlap
    are written module by module, as files sort keys. The files are durable on return.
    """
    from fastsft import _C

    config = _C.write_file(
        str(Path(directory) / CONFIG_NAME), adapter_config_text(settled(settings, targets))
    )
    named = {name_in_file(name, targets): values[name].detach().float() for name in targets.shapes()}
    named |= {name_in_file(name, targets): value.detach() for name, value in (along or {}).items()}
    specs = [
        _C.TensorSpec(name, stored_dtype(named[name]), list(named[name].shape)) for name in sorted(named)
    ]
    writer = _C.SafetensorsWriter(str(Path(directory) / WEIGHTS_NAME), specs, {"format": "pt"})
    for name in sorted(named):
        writer.write(bytes(bits_of(named[name].cpu().contiguous())))
    return [config, writer.finish()]


PREFIX = "base_model.model."
_ADAPTER_PARTS = (".lora_A.weight", ".lora_B.weight")


def name_in_file(name: str, targets: Targets) -> str:
    """`model...q_proj.lora_A.weight` as `base_model.model.model...q_proj.lora_A.weight`.

    peft keeps what a module with an adapter had of its own in its base_layer, one in another for each.
    """
    module, _, parameter = name.rpartition(".")
    layers = sum(module == adapter.layer for adapter in targets.adapters)
    return f"{PREFIX}{module}{'.base_layer' * layers}.{parameter}"


def name_in_engine(name: str) -> str | None:
    """The other way; None for a name that peft's files do not have."""
    if not name.startswith(PREFIX):
        return None
    return without_layers(name.removeprefix(PREFIX))


def is_adapter(name: str) -> bool:
    """True for A or B of an adapter, False for a parameter of the base model."""
    return name.endswith(_ADAPTER_PARTS)


_ROOM_FOR_HEADERS = 1 << 20


@dataclass(frozen=True)
class SavedAdapter:
    """values: everything that is trained, by the engine's names, float32, in host memory.

    along: frozen tensors that the base model, as it is named, has other values for.
    """

    settings: LoraSettings
    targets: Targets
    values: Mapping[str, torch.Tensor]
    along: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def write(self, directory: str | Path) -> list[_C.FileDigest]:
        """Write the adapter's files into a new directory, durable on return. Their digests."""
        return write_adapter(directory, self.settings, self.targets, self.values, self.along)


def adapter_bytes(targets: Targets, along: Mapping[str, torch.Tensor]) -> int:
    """Of the files of an adapter, with room for headers; `along` as of SavedAdapter."""
    elements = 0
    for shape in targets.shapes().values():
        count = 1
        for size in shape:
            count *= size
        elements += count
    replaced = sum(value.numel() * value.element_size() for value in along.values())
    return 4 * elements + int(replaced) + _ROOM_FOR_HEADERS
