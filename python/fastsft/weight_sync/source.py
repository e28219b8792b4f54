"""Sources of weights: their interface, the rules that hold for all of them, and fastsft's own engine."""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from fastsft import _C
from fastsft.weight_sync.interfaces import Engine, NativeEngine
from fastsft.weight_sync.plan import SyncPlan

Named = tuple[str, "torch.Tensor"]
Load = Callable[[list[Named]], None]


@dataclass(frozen=True)
class Described:
    """A tensor of the model without its values. Equal `identity`: the module holds one tensor under both
    names."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_buffer: bool
    identity: int


@dataclass(frozen=True)
class Rows:
    """A rank's part of a tensor: rows `begin` to `begin + len(tensor)` of dimension 0, or all of it."""

    name: str
    tensor: torch.Tensor
    begin: int
    is_sharded: bool


class BroadcastSource(ABC):
    """Describes the weights of an engine and yields them whole. Its methods are collective."""

    config: object = None  # the model's Hugging Face configuration, if it has one
    chooses_tensors = False  # the engine says what is sent, buffers too
    lends_memory = False  # a unit's tensors end when the next unit is asked for

    def __init__(self, engine: Engine) -> None:
        import torch.distributed as dist

        joined = dist.is_available() and dist.is_initialized()
        self.engine, self.weights = engine, weights_of(engine)
        self.rank, self.world_size = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
        self._described: list[Described] = []
        self._resolution: tuple[list[Described], dict[str, str]] | None = None
        self._ties: dict[str, str] = {}
        self._plans: dict[tuple[torch.dtype | None, bool], SyncPlan] = {}

    @abstractmethod
    def describe(self) -> list[Described]:
        """Every tensor of the state dict, in the order in which `whole` yields them."""

    @abstractmethod
    def whole(self) -> Iterator[list[Named]]:
        """The whole tensors, unit by unit, on every rank; valid until the next unit is asked for."""

    @abstractmethod
    def rows(self) -> Iterator[Rows]:
        """This rank's rows of every tensor, cut as `torch.chunk` cuts; may be live memory. Collective."""

    def plan(self, dtype: torch.dtype | None = None, *, buffers: bool = True) -> SyncPlan:
        """Plan of what is sent or saved: parameters in `dtype` (None: their own), buffers in their own dtype.

        Names tied to another one are left out and listed as such, where the configuration ties.
        """
        everything = buffers or self.chooses_tensors
        key = (dtype, everything)
        if key not in self._plans:
            kept, tied = self._resolved()
            sent = [each for each in kept if everything or not each.is_buffer]
            self._plans[key] = SyncPlan([(each.name, _wire(each, dtype), each.shape) for each in sent], tied)
        return self._plans[key]

    def refresh(self) -> None:
        """Notice a model that has changed since it was described: the next plan is a new one."""
        if self._resolution is not None and self.describe() != self._described:
            self._resolution = None
            self._plans.clear()

    def take_changes(self) -> bool:
        """Let weights count that a script has changed outside the engine; True for any; collective.

        Before a transfer, once ranks have met. ValueError, on every rank, for what cannot be taken over.
        """
        return False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside, the module is looked at once, whatever is asked: nobody changes it meanwhile."""
        yield

    def names(self) -> Collection[str]:
        """Of all tensors, whether they are sent or not, as they were when the plan was made."""
        self._resolved()
        return {each.name for each in self._described}

    def wire_device(self, group: object) -> torch.device | str:
        """The device on which `group` communicates: this process's GPU for NCCL, else the CPU."""
        name = getattr(getattr(group, "group", group), "name", lambda: "gloo")()
        return torch.device("cuda", torch.cuda.current_device()) if name == "nccl" else "cpu"

    def sent_twice(self) -> dict[str, str]:
        """Names that the configuration ties to others but the module holds apart: they must be equal."""
        self._resolved()
        return self._ties

    def _resolved(self) -> tuple[list[Described], dict[str, str]]:
        """(what is sent, name -> owner of what is not); made once."""
        if self._resolution is None:
            self._described = self.describe()
            self._resolution = self._resolve(self._described)
        return self._resolution

    def _resolve(self, described: list[Described]) -> tuple[list[Described], dict[str, str]]:
        if ties_words(self.config) is False:
            return described, {}
        apart = self._tied_by_configuration(described)
        kept: list[Described] = []
        tied: dict[str, str] = {}
        owners: dict[int, str] = {}
        for each in described:
            owner = owners.setdefault(each.identity, each.name)
            if owner == each.name and each.name not in apart:
                kept.append(each)
            else:
                tied[each.name] = owner if owner != each.name else apart[each.name]
        self._ties = {name: owner for name, owner in apart.items() if tied.get(name) == owner}
        return kept, tied

    def _tied_by_configuration(self, described: list[Described]) -> dict[str, str]:
        """name -> owner, where the model's class says so and the module holds two tensors."""
        if ties_words(self.config) is not True:
            return {}
        known = {each.name: each.identity for each in described}
        return {
            name: owner
            for name, owner in self.declared_ties().items()
            if name in known and owner in known and known[name] != known[owner]
        }

    def declared_ties(self) -> dict[str, str]:
        """name -> owner as the model's class declares them."""
        return {}


class WeightSource(BroadcastSource):
    """Yields the state dict, whatever an engine would send: what a save needs."""

    def model_texts(self, dtype: torch.dtype | None) -> dict[str, str]:
        """Files that describe the model of a save with parameters in `dtype`; {}: those of `config`."""
        return {}

    def gathers(self) -> bool:
        """True if `rows` is collective; the same on all ranks."""
        return self.world_size > 1


def weights_of(engine: Engine) -> object:
    """The module whose weights an engine has now, or the core's engine."""
    return engine.native_engine if hasattr(engine, "native_engine") else engine.module


def ties_words(config: object) -> bool | None:
    """`tie_word_embeddings` of a configuration; None when nothing says."""
    value = config.get("tie_word_embeddings") if isinstance(config, dict) else None
    value = getattr(config, "tie_word_embeddings", value)
    return None if value is None else bool(value)


def chunk_of(shape: Sequence[int], rank: int, world_size: int) -> tuple[int, int]:
    """(first row, end) of what `torch.chunk` gives a rank; empty for ranks that get nothing."""
    rows = -(-shape[0] // world_size)
    begin = min(rank * rows, shape[0])
    return begin, min(begin + rows, shape[0])


def rows_of_whole(name: str, tensor: torch.Tensor, is_buffer: bool, rank: int, world_size: int) -> Rows:
    """This rank's rows; all of a buffer or a scalar, which are not sharded."""
    if is_buffer or tensor.dim() == 0:
        return Rows(name, tensor, 0, False)
    begin, end = chunk_of(tensor.shape, rank, world_size)
    return Rows(name, tensor[begin:end], begin, True)


class TieCheck:
    """Names that are sent once must hold one value: compares them as they pass by."""

    def __init__(self, pairs: dict[str, str]) -> None:
        self._partners: dict[str, list[tuple[str, str]]] = {}  # name -> (tied, owner) pairs it is in
        for tied, owner in pairs.items():
            for name in (tied, owner):
                self._partners.setdefault(name, []).append((tied, owner))
        self._held: dict[str, torch.Tensor] = {}
        self.error: str | None = None

    @property
    def names(self) -> Collection[str]:
        """Those whose tensors count; the others need not be shown."""
        return self._partners.keys()

    def see(self, name: str, tensor: torch.Tensor) -> None:
        """Called with every tensor of `names`, in any order; others do no harm."""
        for tied, owner in self._partners.get(name, ()):
            other = owner if name == tied else tied
            if other not in self._held:
                self._held[name] = tensor.detach().clone()
            elif not _same_bits(self._held[other], tensor.detach()):
                self.error = (
                    f"{tied} and {owner} are tied by config.json but hold different values; tie them in the "
                    'module, or set "tie_word_embeddings" to false'
                )

    def settle(self) -> None:
        """ValueError when values differed."""
        if self.error is not None:
            raise ValueError(self.error)


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """A NaN is no other value than itself here."""
    if torch.equal(first, second):
        return True
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    one, other = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (first, second))
    return torch.equal(one, other)


def _wire(described: Described, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is None or described.is_buffer or not described.dtype.is_floating_point:
        return described.dtype
    return dtype


class EngineSource(WeightSource):
    """The weights of a `FastsftEngine`. Parameters are described in the dtype that the engine computes in.

    `master` of the engine adapter: float32 masters instead. Buffers have their own dtype and the masters'
    values, which are kept, as training never changes them, and gathered again only after a change.
    """

    def __init__(self, engine: NativeEngine) -> None:
        super().__init__(engine)
        self._native, self._master = engine.native_engine, engine.send_master
        self.rank, self.world_size = self._native.rank, self._native.world_size
        self.config = json.loads(self._native.config_json)
        self._dtype = torch.float32 if self._master else engine.compute_dtype
        self._buffers = dict(engine.buffer_dtypes)
        self._units = _C.unit_tensors(self._native)
        self._exact: dict[int, _ExactBuffers] = {}  # by number of unit

    def model_texts(self, dtype: torch.dtype | None) -> dict[str, str]:
        return cast(NativeEngine, self.engine).model_texts(dtype or self._dtype)

    def take_changes(self) -> bool:
        taken = cast(NativeEngine, self.engine).load_changed_weights()
        if taken:
            self._exact.clear()
        return taken

    def describe(self) -> list[Described]:
        tensors = [tensor for unit in _C.unit_tensors(self._native) for tensor in unit]
        return [
            Described(name, tuple(shape), self._buffers.get(name, self._dtype), name in self._buffers, number)
            for number, (name, shape) in enumerate(tensors)
        ]

    def whole(self) -> Iterator[list[Named]]:
        for unit, tensors in enumerate(self._units):
            buffers = [name for name, _ in tensors if name in self._buffers]
            yield self._with_buffers(unit, buffers) if buffers else self._gathered(unit)

    def _gathered(self, unit: int, *, master: bool = False) -> list[Named]:
        return list(_C.gather_unit(self._native, unit, master=master or self._master))

    def _with_buffers(self, unit: int, names: Sequence[str]) -> list[Named]:
        """A unit with the exact values of its buffers `names`; all ranks see the same, and decide alike."""
        named = self._gathered(unit)
        exact = self._exact.get(unit)
        if exact is None or not exact.are_of(named):
            rounded = {name: tensor.clone() for name, tensor in named if name in names}
            masters = dict(self._gathered(unit, master=True))
            values = {name: masters[name].to(self._buffers[name], copy=True) for name in names}
            exact = self._exact[unit] = _ExactBuffers(rounded, values)
            named = self._gathered(unit)
        return [(name, exact.values.get(name, tensor)) for name, tensor in named]

    def rows(self) -> Iterator[Rows]:
        for unit in self.whole():
            for name, tensor in unit:
                yield rows_of_whole(name, tensor, name in self._buffers, self.rank, self.world_size)


@dataclass(frozen=True)
class _ExactBuffers:
    """Buffers of a unit. rounded: as they came with the unit, by name. values: in their own dtypes."""

    rounded: dict[str, torch.Tensor]
    values: dict[str, torch.Tensor]

    def are_of(self, named: Sequence[Named]) -> bool:
        """True if the unit has the buffers that it had then."""
        return all(_same_bits(self.rounded[name], tensor) for name, tensor in named if name in self.rounded)
