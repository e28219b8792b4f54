"""The parameters of a given model while the engine trains its own copy: current whenever they are read."""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from fastsft.model.weight_digests import tensor_digests
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_values

    import torch
    from torch import nn

    from fastsft import _C

    _Parts = Callable[[str, torch.Tensor], Iterator[tuple[str, torch.Tensor]]]

# What a loop over the parameters holds of each: its variable and the argument of getrefcount.
_OWN_REFERENCES = 2
_OWN_STORAGES = 2  # the parameter, and the object that is asked
_INSTEAD = "change weights before train(), or at other events"


def raw_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Each parameter once, by the name that it has without torch.compile around a part; reads none."""
    seen = set()
    for path, part in module.named_modules():
        for name, parameter in dict.items(part._parameters):
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{path}.{name}".lstrip(".").replace("_orig_mod.", ""), parameter


class LiveWeights:
    """Hands the weights of `engine` to `module` when its parameters are read, and takes what is written.

    On several ranks that hold the weights in shards a reader gets the old ones, and a line. Written weights
    count on one rank; on several they are refused. rename: the engine's name of a parameter, where the
    module has another; parameters of names that the engine does not train stay as they are. parts: the
    tensors of the engine that a parameter consists of (CausalLM.stored_parts).
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
        self._place = (os.getpid(), threading.get_ident())
        self._is_stale = self._is_touched = False
        self._known: dict[str, str] = {}  # digests of what the module was given
        self._objects: dict[str, int] = {}
        self._written: frozenset[str] = frozenset()  # current though others are stale

    def begin(self, known: dict[str, str], *, is_stale: bool) -> None:
        """Watch the parameters. known: their digests. is_stale: the engine has other weights."""
        self._known = dict(known)
        self._objects = {name: id(parameter) for name, parameter in self._named()}
        for part in self._module.modules():
            vars(part)["_parameters"] = _Watched(part._parameters, self._read)
        if is_stale:
            self.moved()

    def end(self) -> dict[str, str]:
        """Watch no longer; digests of what the module was given last."""
        for part in self._module.modules():
            vars(part)["_parameters"] = dict(dict.items(part._parameters))
        return self._known

    def moved(self) -> None:
        """The engine has other weights than before; parameters that a script holds itself get them now."""
        self._is_stale = True
        held = () if self._sharded else self._held()
        self._written = frozenset(held)
        if held:
            warn_once(
                f"{held[0]} of the model is held by the script itself (a variable, a list, an average): such "
                "parameters are written after each step, which takes time"
            )
            self._write(held)

    def refresh(self) -> None:
        """Let the parameters be current, for who reads them in another process."""
        if self._is_stale and not self._sharded:
            # Those that are current already: the script may have written into them since.
            self._write([name for name, _ in self._named() if name not in self._written])
            self._is_stale = False

    def take(self) -> bool:
        """Weights that were written since the last time go into the engine; True for any.

        ValueError for parameters that were replaced, and for what is written on several ranks.
        """
        changed = self._changed()
        self._is_touched = False
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
            self._known.update(tensor_digests([(name, parameters[name])]))
        self._engine.publish()
        return True

    def check_unchanged(self, event: str) -> None:
        """ValueError for weights that a callback wrote between passes and update, which are one call here."""
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
        names = parameters.keys() if self._is_touched else self._held()
        now = tensor_digests([(name, parameters[name]) for name in names if name in parameters])
        return [name for name in now if now[name] != self._known.get(name)]

    def _read(self) -> None:
        if os.getpid() != self._place[0]:  # a worker process has the weights of when it was made
            return
        self._is_touched = True
        if not self._is_stale:
            return
        if self._sharded or threading.get_ident() != self._place[1]:
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
        self._known.update(tensor_digests(written.items()))

    def _named(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in raw_parameters(self._module):
            yield (name if self._rename is None else self._rename(name)), parameter

    def _held(self) -> list[str]:
        """Parameters that something else than the modules refers to, or to their memory."""
        import torch

        own = Counter(
            id(parameter) for part in self._module.modules() for parameter in dict.values(part._parameters)
        )
        use_count: Callable[[int], int] = torch._C._storage_Use_Count
        found = []
        for path, part in self._module.named_modules():
            for name in dict.keys(part._parameters):
                parameter = dict.__getitem__(part._parameters, name)
                if parameter is None:
                    continue
                is_held = sys.getrefcount(parameter) > own[id(parameter)] + _OWN_REFERENCES
                is_shared = use_count(parameter.untyped_storage()._cdata) > _OWN_STORAGES
                if is_held or is_shared or parameter.__weakref__ is not None:
                    found.append(f"{path}.{name}".replace("_orig_mod.", ""))
        return found if self._rename is None else [self._rename(name) for name in found]


class _Watched(dict[str, "nn.Parameter | None"]):
    """`_parameters` of a module: `read` is told before one is handed out."""

    def __init__(self, own: dict[str, nn.Parameter | None], read: Callable[[], None]) -> None:
        super().__init__(own)
        self._read = read

    def __getitem__(self, name: str) -> nn.Parameter | None:
        self._read()
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dict; so are the others."""
        self._read()
        return super().get(name, default)

    def items(self) -> dict_items[str, nn.Parameter | None]:
        self._read()
        return super().items()

    def values(self) -> dict_values[str, nn.Parameter | None]:
        self._read()
        return super().values()

    def copy(self) -> dict[str, nn.Parameter | None]:
        return dict(self.items())

    def __deepcopy__(self, memo: dict[int, object]) -> dict[str, nn.Parameter | None]:
        return copy.deepcopy(dict(self.items()), memo)

    def __reduce__(self) -> tuple[type, tuple[dict[str, nn.Parameter | None]]]:
        return dict, (dict(self.items()),)
