"""The interface for weight sources, and the rules for tied tensors."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from fastsft.weight_sync.interfaces import Engine
from fastsft.weight_sync.plan import SyncPlan

Named = tuple[str, "torch.Tensor"]
Load = Callable[[list[Named]], None]


@dataclass(frozen=True)
class Described:
    """The description of a tensor. Names with equal `identity` refer to the same tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_buffer: bool
    identity: int


@dataclass(frozen=True)
class Rows:
    """A rank's part of a tensor: the rows from `begin` on if it is sharded, else the whole tensor."""

    name: str
    tensor: torch.Tensor
    begin: int
    is_sharded: bool


class BroadcastSource(ABC):
    """A source that describes an engine's weights and yields whole tensors.

    Its methods are collective.
    """

    config: object = None  # the model's Hugging Face configuration, if it has one
    chooses_tensors = False  # True if the engine chooses the tensors to send, including buffers
    lends_memory = False  # True if a unit's tensors are invalid when the next unit is requested

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
        """Return descriptions of all tensors, in the order in which `whole` yields them."""

    @abstractmethod
    def whole(self) -> Iterator[list[Named]]:
        """Yield the whole tensors on every rank, unit by unit. They are valid until the next unit."""

    @abstractmethod
    def rows(self) -> Iterator[Rows]:
        """Yield this rank's rows in every tensor, as `torch.chunk` divides them. Collective.

        The rows may be views into live weights.
        """

    def plan(self, dtype: torch.dtype | None = None, *, buffers: bool = True) -> SyncPlan:
        """Return a transfer's plan.

        dtype: the parameters' dtype; None keeps each tensor's dtype. Buffers always keep their dtypes. If the
        configuration ties tensors, the tensor is sent once, and the further names are in the plan's `tied`.
        """
        everything = buffers or self.chooses_tensors
        key = (dtype, everything)
        if key not in self._plans:
            kept, tied = self._resolved()
            sent = [tensor for tensor in kept if everything or not tensor.is_buffer]
            tensors = [(tensor.name, _wire(tensor, dtype), tensor.shape) for tensor in sent]
            self._plans[key] = SyncPlan(tensors, tied)
        return self._plans[key]

    def refresh(self) -> None:
        """Drop cached plans if names, shapes or dtypes of the model have changed."""
        if self._resolution is not None and self.describe() != self._described:
            self._resolution = None
            self._plans.clear()

    def take_changes(self) -> bool:
        """Load weights that a script has changed outside the engine; return True if there were any.

        Collective.

        Called before a transfer, after the ranks have met. ValueError on every rank if a change cannot be
        loaded.
        """
        return False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Read the state dict only once in this context. The module must not change in the context."""
        yield

    def names(self) -> Collection[str]:
        """Return all tensor names that were described for the plan, even if they are not sent."""
        self._resolved()
        return {tensor.name for tensor in self._described}

    def wire_device(self, group: object) -> torch.device | str:
        """Return the device on which `group` communicates: this process's GPU for NCCL, else the CPU."""
        name = getattr(getattr(group, "group", group), "name", lambda: "gloo")()
        return torch.device("cuda", torch.cuda.current_device()) if name == "nccl" else "cpu"

    def sent_twice(self) -> dict[str, str]:
        """Map name to owner for tensors that the configuration ties, but that the module holds separately."""
        self._resolved()
        return self._ties

    def _resolved(self) -> tuple[list[Described], dict[str, str]]:
        """Return the tensors to send, and a map from tied name to owner, both cached."""
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
        for tensor in described:
            owner = owners.setdefault(tensor.identity, tensor.name)
            if owner == tensor.name and tensor.name not in apart:
                kept.append(tensor)
            else:
                tied[tensor.name] = owner if owner != tensor.name else apart[tensor.name]
        self._ties = {name: owner for name, owner in apart.items() if tied.get(name) == owner}
        return kept, tied

    def _tied_by_configuration(self, described: list[Described]) -> dict[str, str]:
        """Map name to owner for tensors that the model's class ties, but that the module holds separately."""
        if ties_words(self.config) is not True:
            return {}
        known = {tensor.name: tensor.identity for tensor in described}
        return {
            name: owner
            for name, owner in self.declared_ties().items()
            if name in known and owner in known and known[name] != known[owner]
        }

    def declared_ties(self) -> dict[str, str]:
        """Map tied name to owner, as the model's class declares the ties."""
        return {}


class WeightSource(BroadcastSource):
    """A source that always yields the state dict, as saves need it, even if broadcasts send other tensors."""

    def model_texts(self, dtype: torch.dtype | None) -> dict[str, str]:
        """Return texts that describe a model saved in `dtype`, by file name; empty if `config`
        describes it.
        """
        return {}

    def gathers(self) -> bool:
        """Return True if `rows` is collective. The result is the same on all ranks."""
        return self.world_size > 1


def weights_of(engine: Engine) -> object:
    """Return an engine's current module, or a FastsftEngine's C++ engine."""
    return engine.native_engine if hasattr(engine, "native_engine") else engine.module


def ties_words(config: object) -> bool | None:
    """Return a configuration's `tie_word_embeddings`; None if it is missing."""
    value = config.get("tie_word_embeddings") if isinstance(config, dict) else None
    value = getattr(config, "tie_word_embeddings", value)
    return None if value is None else bool(value)


def chunk_of(shape: Sequence[int], rank: int, world_size: int) -> tuple[int, int]:
    """Return (begin, end) of the rows that `torch.chunk` assigns to a rank. There may be none."""
    rows = -(-shape[0] // world_size)
    begin = min(rank * rows, shape[0])
    return begin, min(begin + rows, shape[0])


def rows_of_whole(name: str, tensor: torch.Tensor, is_buffer: bool, rank: int, world_size: int) -> Rows:
    """Return this rank's rows in a whole tensor. Buffers and scalars are not sharded, and stay whole."""
    if is_buffer or tensor.dim() == 0:
        return Rows(name, tensor, 0, False)
    begin, end = chunk_of(tensor.shape, rank, world_size)
    return Rows(name, tensor[begin:end], begin, True)


class TieCheck:
    """Compares tied tensors during a gather, because only one of them is sent.

    pairs: maps tied name to owner.
    """

    def __init__(self, pairs: dict[str, str]) -> None:
        # Maps name to the pairs (tied, owner) that contain it.
        self._partners: dict[str, list[tuple[str, str]]] = {}
        for tied, owner in pairs.items():
            for name in (tied, owner):
                self._partners.setdefault(name, []).append((tied, owner))
        self._held: dict[str, torch.Tensor] = {}
        self.error: str | None = None

    @property
    def names(self) -> Collection[str]:
        """Names whose tensors are compared."""
        return self._partners.keys()

    def see(self, name: str, tensor: torch.Tensor) -> None:
        """Compare a tensor. Called for all tensors in `names`, in any order; other names are ignored."""
        for tied, owner in self._partners.get(name, ()):
            other = owner if name == tied else tied
            if other not in self._held:
                self._held[name] = tensor.detach().clone()
            elif not same_bits(self._held[other], tensor.detach()):
                self.error = (
                    f"{tied} and {owner} are tied by config.json but hold different values; tie them in the "
                    'module, or set "tie_word_embeddings" to false'
                )

    def settle(self) -> None:
        """Raise ValueError if compared tensors have different values."""
        if self.error is not None:
            raise ValueError(self.error)


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return True if two tensors are equal or have the same bits, so that NaN equals itself."""
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
