"""Compares the library code that a model's forward pass calls by name with the library's source files.

The names are read from code objects, so that no function list must be updated for new releases.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

from fastsft.model.alterations.alteration import Alteration
from fastsft.model.alterations.equal_replacements import equal_replacement
from fastsft.originals.functions import described, is_defined_there, is_written_in, plain
from fastsft.originals.snapshots import WatchedNames
from fastsft.originals.source import nested_codes, source_of

# Methods that run when a module is called, and methods that can hide an attribute.
_OF_A_CALL = ("__call__", "_wrapped_call_impl", "_call_impl", "__getattr__", "__getattribute__", "forward")
_MODELS = "transformers.models."
# Tensor methods that run for an operator, so that the code does not name them.
_OPERATORS = {
    *("__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__imul__", "__pow__"),
    *("__matmul__", "__rmatmul__", "__truediv__", "__neg__", "__getitem__", "__setitem__"),
    *("__torch_function__", "backward"),
}
# This transformers module gets some of its functions when flash attention is first called.
_FILLED_AT_USE = ("transformers.modeling_flash_attention_utils",)
# Exact causal attention implementations; they differ only in speed.
_ATTENTION = {
    "sdpa": ("transformers.integrations.sdpa_attention", "sdpa_attention_forward"),
    "flash_attention_2": ("transformers.integrations.flash_attention", "flash_attention_forward"),
    "flash_attention_3": ("transformers.integrations.flash_attention", "flash_attention_forward"),
    "flex_attention": ("transformers.integrations.flex_attention", "flex_attention_forward"),
}
_FLASH = _ATTENTION["flash_attention_2"]
_MASKS = {
    "eager": "eager_mask", "sdpa": "sdpa_mask", "flash_attention_2": "flash_attention_mask",
    "flash_attention_3": "flash_attention_mask", "flex_attention": "flex_attention_mask",
}  # fmt: skip
_ACTIVATIONS = {
    "silu": ("SiLU", ("torch.nn.modules.activation.SiLU", "transformers.activations.SiLUActivation")),
    "gelu_pytorch_tanh": (
        "GELU's tanh form", ("transformers.activations.GELUTanh", "transformers.activations.PytorchGELUTanh"),
    ),
}  # fmt: skip
SAME_ACTIVATIONS = [classes for _, classes in _ACTIVATIONS.values()]
_CAUSAL = "causal softmax attention inside each row"
_TAKE_BACK = "take the change back, or train with transformers' Trainer"
_USE_SDPA = 'load the model with attn_implementation="sdpa", or train with transformers\' Trainer'
_NATIVE = "what the untouched library computes"
_WAY_OUT = "take the change back (a fresh process without it), or train with transformers' Trainer"
CONDENSED = (
    'if it divides the positions by a ratio (condensed rope), set "rope_scaling": {"type": "linear", '
    '"factor": ratio} in config.json instead, else train with transformers\' Trainer'
)


class LibraryCode:
    """The library code that given classes reach through names.

    found: names whose value differs from their source file.
    equal: phrases, for messages, about replacements that compute the same.
    reads: for each class, the attributes that a call reads.
    reads_of_modules: attributes that functions read from an argument `module`.
    watched: all names that were followed.
    with_init: True to follow `__init__` as well, for a model that is not loaded yet.
    """

    def __init__(self, with_init: bool) -> None:
        self.found: list[Alteration] = []
        self.equal: list[str] = []
        self.reads: dict[type, set[str]] = {}
        self.reads_of_modules: set[str] = set()
        self.watched = WatchedNames()
        self._start = (*_OF_A_CALL, "__init__") if with_init else _OF_A_CALL
        self._with_init = with_init
        self._seen: set[tuple[str, str]] = set()

    def follow_class(self, kind: type) -> None:
        """Follow the methods that run when a module of this class is called, and the names in them."""
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
        """Yield the classes whose definition of `name` may run.

        A method such as __call__ or __getattr__ can be reached in every base class. For other names, only the
        nearest definition runs.
        """
        owners = [owner for owner in kind.__mro__[:-1] if name in vars(owner)]
        yield from owners if name in self._start and name != "forward" else owners[:1]

    def _follow_method(self, owner: type, name: str) -> set[str]:
        """Follow a method that `owner` itself defines.

        Return the attributes that the method reads from `self`.
        """
        value, home = vars(owner)[name], owner.__module__
        qualname = f"{owner.__qualname__}.{name}"
        self.watched.add(owner, name)
        if home not in sys.modules or not (callable(plain(value)) or isinstance(value, property)):
            return set()
        if isinstance(value, type) and not source_of(home).defines(qualname):
            return set()
        if not self._is_own(value, home, qualname):
            self._replaced(f"{home}.{qualname}", value)
            return set()
        if name == "__init__" and not home.startswith(_MODELS):
            return set()
        codes = source_of(home).codes.get(qualname) or [plain(value).__code__]
        read = {name for code in codes for name in self._follow(code, home)}
        # A call of the module does not read the attributes that __init__ reads.
        return set() if name == "__init__" else read

    def _is_own(self, value: object, home: str, qualname: str) -> bool:
        if source_of(home).defines(qualname):
            return is_defined_there(value, home, qualname)
        # A class attribute can be a function that has another name, such as Module.__call__.
        return is_written_in(value, home) and not home.startswith("transformers.")

    def _follow(self, code: CodeType, home: str) -> frozenset[str]:
        """Follow the names in a function's code.

        Return the attributes that the function reads from its first argument.
        """
        if home.startswith("transformers.") or home.startswith("torch.nn.modules."):
            named = _names_of(code)
            for name in sorted(named & vars(sys.modules[home]).keys()):
                self.follow_name(home, name, named)
            self._follow_tensor_methods(named)
        return _reads_of_self(code)

    def follow_name(self, home: str, name: str, named: set[str] | frozenset[str] = frozenset()) -> None:
        """Follow a name in the module `home`.

        named: other names in the same code, some of which may be attributes of `name`.
        """
        value, source = vars(sys.modules[home])[name], source_of(home)
        if isinstance(value, ModuleType):
            self._follow_module(value, named, depth=3)
            return
        if (home, name) in self._seen:
            return
        self._seen.add((home, name))
        self.watched.add(sys.modules[home], name)
        if source.defines(name):
            if not is_defined_there(value, home, name):
                self._replaced(f"{home}.{name}", value)
            elif not home.startswith("torch"):
                for code in source.codes[name]:
                    read = self._follow(code, home)
                    self.reads_of_modules |= read if code.co_varnames[:1] == ("module",) else set()
        elif source.defines_class(name):
            self._follow_class_name(value, home, name)
        elif name in source.imports:
            self._follow_import(value, home, name)
        elif home not in _FILLED_AT_USE and _is_foreign(value, home.split(".")[0]):
            self._replaced(f"{home}.{name}", value)

    def follow_torch(self, named: set[str]) -> None:
        """Follow the torch functions and tensor methods whose names are in `named`."""
        self._follow_module(sys.modules["torch"], named, depth=3)
        self._follow_tensor_methods(named)

    def _follow_class_name(self, value: object, home: str, name: str) -> None:
        if home.startswith("torch") and _is_torchs(value, name):
            return
        if not isinstance(value, type) or (value.__module__, value.__qualname__) != (home, name):
            self._replaced(f"{home}.{name}", value)
        elif self._with_init and home.startswith(_MODELS) and hasattr(value, "forward"):
            self.follow_class(value)

    def _follow_import(self, value: object, home: str, name: str) -> None:
        """Compare an imported name with the object in its module of origin, and follow the name there."""
        for module, original in source_of(home).imports[name]:
            if module not in sys.modules:
                continue
            if original is None or vars(sys.modules[module]).get(original) is value:
                if original is not None and module.split(".")[0] in ("transformers", "torch"):
                    self.follow_name(module, original)
                return
        if not isinstance(value, str | int | float | None):
            self._replaced(f"{home}.{name}", value)

    def _follow_module(self, module: ModuleType, named: set[str] | frozenset[str], depth: int) -> None:
        """Follow a torch module's attributes whose names are in `named`. depth: submodule levels."""
        package = module.__name__.split(".")[0]
        if package != "torch" or depth == 0:
            return
        for name in sorted(named & vars(module).keys()):
            value, where = vars(module)[name], f"{module.__name__}.{name}"
            if isinstance(value, ModuleType):
                self._follow_module(value, named, depth - 1)
            elif (module.__name__, name) not in self._seen:
                self._seen.add((module.__name__, name))
                self.watched.add(module, name)
                defined = source_of(module.__name__).defines(name)
                own = is_defined_there(value, module.__name__, name) if defined else _is_torchs(value, name)
                if not own and not _is_imported(value, module.__name__, name):
                    self._replaced(where, value)

    def _follow_tensor_methods(self, named: set[str] | frozenset[str]) -> None:
        methods = vars(sys.modules["torch"].Tensor)
        for name in sorted((named | _OPERATORS) & methods.keys()):
            if ("torch.Tensor", name) not in self._seen:
                self._seen.add(("torch.Tensor", name))
                self.watched.add(sys.modules["torch"].Tensor, name)
                value = methods[name]
                if not _is_torchs(value, name):
                    self._replaced(f"torch.Tensor.{name}", value)

    def _replaced(self, where: str, value: object) -> None:
        known = equal_replacement(value)
        if known is not None:
            self.equal.append(known)
            return
        is_rotation = "RotaryEmbedding" in where or "apply_rotary" in where
        self.differs(where, value, _NATIVE, CONDENSED if is_rotation else _WAY_OUT)

    def differs(self, where: str, value: object, native: str, way_out: str) -> None:
        """Add an alteration, because `value` replaces the library's own object."""
        self.found.append(Alteration(where, f"is replaced by {described(value)}", native, way_out))


def _is_torchs(value: object, name: str) -> bool:
    """Return True if the value is torch's own object with this name.

    Values that are no code count as torch's.
    """
    if isinstance(value, BuiltinFunctionType):
        return value.__name__ == name
    if isinstance(value, FunctionType):
        return is_written_in(value, "torch")
    if isinstance(value, type):
        return value.__module__.split(".")[0] in ("torch", "builtins")
    return not callable(value) or type(value).__module__.split(".")[0] in ("torch", "builtins")


def _is_imported(value: object, home: str, name: str) -> bool:
    """Return True if the file of `home` imports the value from a package other than torch."""
    return any(
        module.split(".")[0] != "torch" and vars(sys.modules.get(module, object)).get(original or "") is value
        for module, original in source_of(home).imports.get(name, ())
    )


def _is_foreign(value: object, package: str) -> bool:
    return isinstance(value, FunctionType) and not is_written_in(value, package)


@functools.cache
def _names_of(code: CodeType) -> frozenset[str]:
    return frozenset(name for part in (code, *nested_codes(code)) for name in part.co_names)


@functools.cache
def _reads_of_self(code: CodeType) -> frozenset[str]:
    """Return the attribute names that a function reads from its first argument."""
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


def follow_tables(code: LibraryCode, implementation: str) -> None:
    """Follow the functions for attention, mask and loss, which transformers looks up in tables."""
    _follow_attention(code, implementation)
    _check_mask(code, implementation)
    loss = _table("transformers.loss.loss_utils", "LOSS_MAPPING")
    if loss is None:
        return
    if is_causal_lm_loss(loss.get("ForCausalLM")):
        code.follow_name("transformers.loss.loss_utils", "ForCausalLMLoss")
    else:
        where = 'transformers.loss.loss_utils.LOSS_MAPPING["ForCausalLM"]'
        code.differs(where, loss.get("ForCausalLM"), "the cross entropy of the next token", _TAKE_BACK)


def follow_builders(code: LibraryCode, activation: str) -> None:
    """Follow activation and rotation, which transformers looks up in tables when it builds a model."""
    table = _table("transformers.activations", "ACT2FN")
    kind = dict.get(table, activation) if isinstance(table, dict) else None
    words, classes = _ACTIVATIONS[activation]
    if isinstance(kind, type) and f"{kind.__module__}.{kind.__qualname__}" in classes:
        code.follow_class(kind)
    elif kind is not None:
        code.differs(f'transformers.activations.ACT2FN["{activation}"]', kind, words, _TAKE_BACK)
    units = "transformers.modeling_rope_utils"
    for name, value in (_table(units, "ROPE_INIT_FUNCTIONS") or {}).items():
        own = getattr(value, "__name__", "")
        is_own = name in own and is_defined_there(value, units, own)
        if name in ("default", "linear", "llama3") and not is_own:
            code.differs(f'{units}.ROPE_INIT_FUNCTIONS["{name}"]', value, f'rope_type "{name}"', _TAKE_BACK)


def is_causal_lm_loss(value: object) -> bool:
    """Return True if `value` is transformers' next-token cross entropy."""
    return is_defined_there(value, "transformers.loss.loss_utils", "ForCausalLMLoss")


def _follow_attention(code: LibraryCode, implementation: str) -> None:
    table = _table("transformers.modeling_utils", "ALL_ATTENTION_FUNCTIONS")
    # "eager" has no entry in the table: its function is in the model's own module
    if table is None or implementation == "eager":
        return
    where = f'transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["{implementation}"]'
    value, home = table.get(implementation), _ATTENTION.get(implementation)
    if home is None and "/" in implementation and isinstance(value, functools.partial):
        home, value = _FLASH, value.func  # transformers' own function, which calls a kernel from the hub
    if home is None:
        found = "is not there" if value is None else f"is {described(value)}"
        code.found.append(Alteration(where, found, _CAUSAL, _USE_SDPA))
    elif is_defined_there(value, *home):
        code.follow_name(*home)
    else:
        code.differs(where, value, _CAUSAL, _USE_SDPA)


def _check_mask(code: LibraryCode, implementation: str) -> None:
    home = "transformers.masking_utils"
    value = (_table(home, "ALL_MASK_ATTENTION_FUNCTIONS") or {}).get(implementation)
    kind = _MASKS.get(implementation, "flash_attention_mask" if "/" in implementation else "?")
    name = getattr(value, "__name__", "")
    # There is no value if the release has no such table, or if transformers itself rejects the name.
    if value is not None and not (name.startswith(kind) and is_defined_there(value, home, name)):
        where = f'{home}.ALL_MASK_ATTENTION_FUNCTIONS["{implementation}"]'
        code.differs(where, value, _CAUSAL, _USE_SDPA)


def _table(module: str, name: str) -> Mapping[str, object] | None:
    return vars(sys.modules[module]).get(name) if module in sys.modules else None
