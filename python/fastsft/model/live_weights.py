"""LiveWeights: keeps a given model's parameters up to date while the engine trains its own copy."""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from fastsft.model.weight_identity import tensor_digests
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    import torch

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_values

    import torch
    from torch import nn

    from fastsft import _C

    _Parts = Callable[[str, torch.Tensor], Iterator[tuple[str, torch.Tensor]]]

# References to a parameter within the loop: the variable, and the argument of getrefcount.
_OWN_REFERENCES = 2
_OWN_STORAGES = 2  # references to a storage: the parameter's own, and the object that is asked for the count
_INSTEAD = "change weights before train(), or at other events"
_GRADIENTS = ("grad", "_grad")
_WAY_OUT = (
    "passes and update of a step are one call of the engine, which shows no gradients; grad_norm of the logs "
    "is their norm, max_grad_norm clips them; leave it out, or train with transformers' Trainer"
)


def raw_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield each parameter once, by its name without torch.compile's wrappers. Causes no refresh."""
    seen = set()
    for path, part in module.named_modules():
        for name, parameter in dict.items(part._parameters):
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{path}.{name}".lstrip(".").replace("_orig_mod.", ""), parameter


class LiveWeights:
    """Copies the engine's weights into `module` when its parameters are read, and loads written weights back.

    If the weights are sharded, reads return the old values, with a warning. On several ranks, written weights
    raise ValueError.
    rename: maps a parameter's name in the module to the engine's name. Parameters that the engine does not
    train keep their values.
    parts: yields the engine's tensors that make up a parameter (CausalLM.stored_parts).
    """

    def __init__(
        self,
        module: nn.Module,
        engine: _C.Engine,
        *,
        sharded: bool,
        rename: Callable[[str], str] | None = None,
        parts: _Parts | None = None,
    ) -> None:
        self._module, self._engine, self._sharded = module, engine, sharded
        self._rename = rename
        self._parts: _Parts = parts or (lambda name, tensor: iter(((name, tensor),)))
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._is_stale = self._was_read = False
        self._digests: dict[str, str] = {}  # digests of the values last exchanged with the engine, by name
        self._objects: dict[str, int] = {}
        # Parameters that are up to date although others are stale.
        self._written: frozenset[str] = frozenset()

    def begin(self, digests: dict[str, str], *, is_stale: bool) -> None:
        """Begin to watch reads and writes of the module's parameters.

        digests: for the parameters' present values. is_stale: True if the engine has newer weights
        than the module.
        """
        self._digests = dict(digests)
        self._objects = {name: id(parameter) for name, parameter in self._named()}
        for part in self._module.modules():
            vars(part)["_parameters"] = _WatchedParameters(part._parameters, self._before_read)
        if is_stale:
            self.mark_stale()

    def end(self) -> dict[str, str]:
        """Stop watching. Return the digests for the values last exchanged with the engine."""
        for part in self._module.modules():
            vars(part)["_parameters"] = dict(dict.items(part._parameters))
        return self._digests

    def mark_stale(self) -> None:
        """Record that the engine has newer weights than the module.

        A parameter that a script references directly is copied from the engine at once, because its reads
        cannot be watched.
        """
        self._is_stale = True
        referenced = () if self._sharded else self._referenced()
        self._written = frozenset(referenced)
        if referenced:
            warn_once(
                f"{referenced[0]} of the model is held by the script itself (a variable, a list, an "
                "average): such parameters are written after each step, which takes time"
            )
            self._write(referenced)

    def refresh(self) -> None:
        """Write the newest weights into the module."""
        if self._is_stale and not self._sharded:
            # Skip parameters that are already up to date: the script may have written into them since.
            self._write([name for name, _ in self._named() if name not in self._written])
            self._is_stale = False

    def load_written(self) -> bool:
        """Load weights that a script has written into the engine; return True if there were any.

        ValueError if a parameter was replaced, or if weights were written on several ranks.
        """
        changed = self._changed()
        self._was_read = False
        if not changed:
            return False
        if launch().world_size > 1:
            raise ValueError(
                f"Trainer.train: {changed[0]} of the model was changed while train() runs on several ranks, "
                f"which is not taken over there; {_INSTEAD}, or train on one rank"
            )
        parameters = dict(self._named())
        for name in changed:
            for stored, part in self._parts(name, parameters[name].detach()):
                self._engine.set_parameter(stored, part)
            self._digests.update(tensor_digests([(name, parameters[name])]))
        self._engine.publish()
        return True

    def check_unchanged(self, event: str) -> None:
        """Raise ValueError if a callback wrote weights between the passes and the update of a step."""
        changed = self._changed()
        if changed:
            raise ValueError(
                f"a callback changed {changed[0]} of the model at {event}: passes and update of a step are "
                "one call of the engine; change weights at on_step_begin or on_step_end"
            )

    def _changed(self) -> list[str]:
        parameters = dict(self._named())
        for name, number in self._objects.items():
            if id(parameters.get(name)) != number:
                raise ValueError(
                    f"Trainer.train: {name} of the model was replaced by another parameter while train() "
                    "runs, and transformers' optimizer would go on with the old one; write into it "
                    "(parameter.data.copy_)"
                )
        names = parameters.keys() if self._was_read else self._referenced()
        now = tensor_digests([(name, parameters[name]) for name in names if name in parameters])
        return [name for name in now if now[name] != self._digests.get(name)]

    def _before_read(self) -> None:
        if os.getpid() != self._process:  # a worker process keeps the weights from its fork
            return
        self._was_read = True
        if not self._is_stale:
            return
        if self._sharded or threading.get_ident() != self._thread:
            where = f"{launch().world_size} ranks hold them in shards" if self._sharded else "another thread"
            warn_once(
                f"parameters of the model are read while train() runs ({where}): they have their old values; "
                "save a checkpoint, or call trainer.model.state_dict() on all ranks"
            )
            return
        self.refresh()

    def _write(self, names: Collection[str]) -> None:
        import torch

        trained = self._engine.trained_parameters()
        written = {}
        with torch.no_grad():
            for name, parameter in self._named():
                if name not in names:
                    continue
                for stored, part in self._parts(name, parameter):
                    if stored in trained:
                        part.copy_(trained[stored])
                        written[name] = parameter
        self._digests.update(tensor_digests(written.items()))

    def _named(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in raw_parameters(self._module):
            yield (name if self._rename is None else self._rename(name)), parameter

    def _referenced(self) -> list[str]:
        """Return the parameter names to which code outside the modules has a reference.

        A reference to the parameter's memory counts, too.
        """
        import torch

        own = Counter(
            id(parameter) for part in self._module.modules() for parameter in dict.values(part._parameters)
        )
        use_count: Callable[[int], int] = torch._C._storage_Use_Count
        names = []
        for path, part in self._module.named_modules():
            for name in dict.keys(part._parameters):
                parameter = dict.__getitem__(part._parameters, name)
                if parameter is None:
                    continue
                is_referenced = sys.getrefcount(parameter) > own[id(parameter)] + _OWN_REFERENCES
                is_shared = use_count(parameter.untyped_storage()._cdata) > _OWN_STORAGES
                if is_referenced or is_shared or parameter.__weakref__ is not None:
                    names.append(f"{path}.{name}".replace("_orig_mod.", ""))
        return names if self._rename is None else [self._rename(name) for name in names]


class LiveHooks:
    """Hooks for a model with a module, whose parameters are kept up to date while `train` runs."""

    module: nn.Module
    _live: LiveWeights | None = None
    _weights: dict[str, str]  # the parameters' digests when last exchanged with the engine

    @property
    def training(self) -> bool:
        """The module's training mode, as scripts see it."""
        return bool(self.module.training)

    def set_mode(self, *, training: bool) -> None:
        self.module.train(training)

    def end_training(self) -> None:
        """Stop watching the module's parameters. They keep the values from the last read."""
        if self._live is not None:
            self._weights, self._live = self._live.end(), None

    def mark_stale(self) -> None:
        if self._live is not None:
            self._live.mark_stale()

    def refresh(self) -> None:
        if self._live is not None:
            self._live.refresh()

    def load_written_weights(self) -> bool:
        return self._live is not None and self._live.load_written()

    def check_no_writes(self, event: str) -> None:
        if self._live is not None:
            self._live.check_unchanged(event)


class _WatchedParameters(dict[str, "nn.Parameter | None"]):
    """A module's `_parameters` that calls `before_read` before it returns a parameter."""

    def __init__(self, own: dict[str, nn.Parameter | None], before_read: Callable[[], None]) -> None:
        super().__init__(own)
        self._before_read = before_read

    def __getitem__(self, name: str) -> nn.Parameter | None:
        self._before_read()
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._before_read()
        return super().get(name, default)

    def items(self) -> dict_items[str, nn.Parameter | None]:
        self._before_read()
        return super().items()

    def values(self) -> dict_values[str, nn.Parameter | None]:
        self._before_read()
        return super().values()

    def copy(self) -> dict[str, nn.Parameter | None]:
        return dict(self.items())

    def __deepcopy__(self, memo: dict[int, object]) -> dict[str, nn.Parameter | None]:
        return copy.deepcopy(dict(self.items()), memo)

    def __reduce__(self) -> tuple[type, tuple[dict[str, nn.Parameter | None]]]:
        return dict, (dict(self.items()),)


@contextmanager
def forbid_gradients(named: list[tuple[str, torch.Tensor]], event: str) -> Iterator[None]:
    """Raise ValueError if a parameter's `grad` is read or written in this context.

    event: the callback's event, for the message.
    """
    names = {id(parameter): name for name, parameter in named}
    kinds = {type(parameter): _guarded(type(parameter), names, event) for _, parameter in named}
    for _, parameter in named:
        parameter.__class__ = kinds[type(parameter)]
    try:
        yield
    finally:
        for _, parameter in named:
            parameter.__class__ = type(parameter).__mro__[1]


def _guarded(kind: type, names: dict[int, str], event: str) -> type:
    def refuse(parameter: torch.Tensor, *_: object) -> NoReturn:
        where = names.get(id(parameter), "a parameter")
        raise ValueError(f"a callback's {event} asks for the gradient of {where} of the model: {_WAY_OUT}")

    def copied(parameter: torch.Tensor, memo: dict[int, object]) -> torch.Tensor:
        made: torch.Tensor = kind.__deepcopy__(parameter, memo)  # type: ignore[attr-defined]
        made.__class__ = kind
        return made

    hidden = dict.fromkeys(_GRADIENTS, property(refuse, refuse, refuse))
    return type(kind.__name__, (kind,), {**hidden, "__deepcopy__": copied, "__module__": kind.__module__})
