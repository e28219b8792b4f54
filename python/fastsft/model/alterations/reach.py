"""Everything that the forward of untouched classes calls by name, checked to be what was written there.

Names are read from the code itself: no list of functions is kept, so any release's are followed.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

from fastsft.model.alterations.finding import Alteration
from fastsft.model.alterations.known import equal_replacement
from fastsft.originals.functions import described, is_defined_there, is_written_in, plain
from fastsft.originals.snapshots import WatchedNames
from fastsft.originals.source import nested_codes, source_of

# What a call of a module goes through before its forward, and what can hide an attribute.
_OF_A_CALL = ("__call__", "_wrapped_call_impl", "_call_impl", "__getattr__", "__getattribute__", "forward")
_MODELS = "transformers.models."
# Methods of tensors that code calls without their names.
_OPERATORS = {
    *("__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__imul__", "__pow__"),
    *("__matmul__", "__rmatmul__", "__truediv__", "__neg__", "__getitem__", "__setitem__"),
    *("__torch_function__", "backward"),
}
# Its functions are put into the module by the library itself, at the first use of flash attention.
_FILLED_AT_USE = ("transformers.modeling_flash_attention_utils",)
_NATIVE = "what the untouched library computes"
_WAY_OUT = "take the change back (a fresh process without it), or train with transformers' Trainer"
CONDENSED = (
    'if it divides the positions by a ratio (condensed rope), set "rope_scaling": {"type": "linear", '
    '"factor": ratio} in config.json instead, else '
    "train with transformers' Trainer"
)


class Reach:
    """Follows code from classes; `found` holds what is not as its file says, `equal` what is known to be.

    with_init: follow how modules are built as well, for a model that is still to be loaded.
    """

    def __init__(self, with_init: bool) -> None:
        self.found: list[Alteration] = []
        self.equal: list[str] = []
        self.reads: dict[type, set[str]] = {}
        self.places = WatchedNames()
        self._start = (*_OF_A_CALL, "__init__") if with_init else _OF_A_CALL
        self._with_init = with_init
        self._seen: set[tuple[str, str]] = set()

    def follow_class(self, kind: type) -> None:
        """The methods of a module class that a call of it reaches, and what they name."""
        if kind in self.reads:
            return
        names = self.reads[kind] = set(self._start)
        waiting = sorted(names)
        while waiting:
            name = waiting.pop()
            for owner in self._owners(kind, name):
                read = self._follow_method(owner, name) - names
                names |= read
                waiting += sorted(read)

    def _owners(self, kind: type, name: str) -> Iterator[type]:
        """Whose `name` counts: the nearest class's; of what leads into a call all, which call each other."""
        owners = [owner for owner in kind.__mro__[:-1] if name in vars(owner)]
        yield from owners if name in self._start and name != "forward" else owners[:1]

    def _follow_method(self, owner: type, name: str) -> set[str]:
        """Names that the method reads of its object, once it is known to be the class's own."""
        value, home = vars(owner)[name], owner.__module__
        qualname = f"{owner.__qualname__}.{name}"
        self.places.add(owner, name)
        if home not in sys.modules or not (callable(plain(value)) or isinstance(value, property)):
            return set()
        if isinstance(value, type) and not source_of(home).defines(qualname):
            return set()
        if not self._is_own(value, home, qualname):
            self._differs(f"{home}.{qualname}", value)
            return set()
        if name == "__init__" and not home.startswith(_MODELS):
            return set()
        read = {read for code in self._codes(home, qualname, value) for read in self._follow(code, home)}
        return set() if name == "__init__" else read  # what fills the weights is loaded over

    def _is_own(self, value: object, home: str, qualname: str) -> bool:
        if source_of(home).defines(qualname):
            return is_defined_there(value, home, qualname)
        # A class attribute that is a function of another name, like Module.__call__.
        return is_written_in(value, home) and not _is_family(home)

    def _codes(self, home: str, qualname: str, value: object) -> list[CodeType]:
        return source_of(home).codes.get(qualname) or [plain(value).__code__]

    def _follow(self, code: CodeType, home: str) -> frozenset[str]:
        """Follow names in the code of a function of `home`; returns what it reads of its first argument."""
        if home.startswith("transformers.") or home.startswith("torch.nn.modules."):
            named = _names_of(code)
            for name in sorted(named & vars(sys.modules[home]).keys()):
                self.follow_name(home, name, named)
            self._follow_tensor_methods(named)
        return _reads_of_self(code)

    def follow_name(self, home: str, name: str, named: set[str] | frozenset[str] = frozenset()) -> None:
        """A name of module `home`; `named`: the names next to it, of which some may be its attributes."""
        value, source = vars(sys.modules[home])[name], source_of(home)
        if isinstance(value, ModuleType):
            self._follow_module(value, named, depth=3)
            return
        if (home, name) in self._seen:
            return
        self._seen.add((home, name))
        self.places.add(sys.modules[home], name)
        if source.defines(name):
            if not is_defined_there(value, home, name):
                self._differs(f"{home}.{name}", value)
            elif not home.startswith("torch"):
                for code in source.codes[name]:
                    self._follow(code, home)
        elif source.defines_class(name):
            self._follow_class_name(value, home, name)
        elif name in source.imports:
            self._follow_import(value, home, name)
        elif home not in _FILLED_AT_USE and _is_foreign(value, home.split(".")[0]):
            self._differs(f"{home}.{name}", value)

    def follow_torch(self, named: set[str]) -> None:
        """Follow the parts of torch's modules and tensors that code with the names `named` in it means."""
        self._follow_module(sys.modules["torch"], named, depth=3)
        self._follow_tensor_methods(named)

    def _follow_class_name(self, value: object, home: str, name: str) -> None:
        if home.startswith("torch") and _is_torchs(value, name):
            return
        if not isinstance(value, type) or (value.__module__, value.__qualname__) != (home, name):
            self._differs(f"{home}.{name}", value)
        elif self._with_init and home.startswith(_MODELS) and hasattr(value, "forward"):
            self.follow_class(value)

    def _follow_import(self, value: object, home: str, name: str) -> None:
        """An imported name must be what it is where it comes from, and that what its file says."""
        for module, original in source_of(home).imports[name]:
            if module not in sys.modules:
                continue
            if original is None or vars(sys.modules[module]).get(original) is value:
                if original is not None and module.split(".")[0] in ("transformers", "torch"):
                    self.follow_name(module, original)
                return
        if not isinstance(value, str | int | float | None):
            self._differs(f"{home}.{name}", value)

    def _follow_module(self, module: ModuleType, named: set[str] | frozenset[str], depth: int) -> None:
        """Attributes of torch's modules that the code may mean."""
        package = module.__name__.split(".")[0]
        if package != "torch" or depth == 0:
            return
        for name in sorted(named & vars(module).keys()):
            value, where = vars(module)[name], f"{module.__name__}.{name}"
            if isinstance(value, ModuleType):
                self._follow_module(value, named, depth - 1)
            elif (module.__name__, name) not in self._seen:
                self._seen.add((module.__name__, name))
                self.places.add(module, name)
                defined = source_of(module.__name__).defines(name)
                own = is_defined_there(value, module.__name__, name) if defined else _is_torchs(value, name)
                if not own and not _is_imported(value, module.__name__, name):
                    self._differs(where, value)

    def _follow_tensor_methods(self, named: set[str] | frozenset[str]) -> None:
        methods = vars(sys.modules["torch"].Tensor)
        for name in sorted((named | _OPERATORS) & methods.keys()):
            if ("torch.Tensor", name) not in self._seen:
                self._seen.add(("torch.Tensor", name))
                self.places.add(sys.modules["torch"].Tensor, name)
                value = methods[name]
                if not _is_torchs(value, name):
                    self._differs(f"torch.Tensor.{name}", value)

    def _differs(self, where: str, value: object) -> None:
        known = equal_replacement(value)
        if known is not None:
            self.equal.append(known)
            return
        way_out = CONDENSED if "RotaryEmbedding" in where or "apply_rotary" in where else _WAY_OUT
        self.found.append(Alteration(where, f"is replaced by {described(value)}", _NATIVE, way_out))


def _is_torchs(value: object, name: str) -> bool:
    """True if a callable of torch is one that torch itself has under this name."""
    if isinstance(value, BuiltinFunctionType):
        return value.__name__ == name
    if isinstance(value, FunctionType):
        return is_written_in(value, "torch")
    if isinstance(value, type):
        return value.__module__.split(".")[0] in ("torch", "builtins")
    return not callable(value) or type(value).__module__.split(".")[0] in ("torch", "builtins")


def _is_imported(value: object, home: str, name: str) -> bool:
    """True if a module has a name from another package, as its file says."""
    return any(
        module.split(".")[0] != "torch" and vars(sys.modules.get(module, object)).get(original or "") is value
        for module, original in source_of(home).imports.get(name, ())
    )


def _is_foreign(value: object, package: str) -> bool:
    return isinstance(value, FunctionType) and not is_written_in(value, package)


def _is_family(module: str) -> bool:
    return module.startswith("transformers.")


@functools.cache
def _names_of(code: CodeType) -> frozenset[str]:
    return frozenset(name for part in (code, *nested_codes(code)) for name in part.co_names)


@functools.cache
def _reads_of_self(code: CodeType) -> frozenset[str]:
    """Attributes that a function reads of its first argument."""
    if not code.co_argcount or not code.co_flags & inspect.CO_OPTIMIZED:
        return frozenset()
    read: set[str] = set()
    myself, on_top = code.co_varnames[0], False
    for instruction in dis.get_instructions(code):
        if on_top and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            read.add(str(instruction.argval))
        held = instruction.argval
        last = held[-1] if isinstance(held, tuple) and held else held
        on_top = instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and last == myself
    return frozenset(read)
