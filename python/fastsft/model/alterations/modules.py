"""Compares a given model's modules with those of a fresh model that has the same configuration."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Iterator, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from fastsft.model.alterations.alteration import Alteration, path_of
from fastsft.model.alterations.equal_replacements import equal_replacement
from fastsft.model.alterations.library_code import CONDENSED, SAME_ACTIVATIONS, LibraryCode, is_causal_lm_loss
from fastsft.model.family import CAP
from fastsft.originals.classes import is_class_of
from fastsft.originals.functions import described, is_defined_there, is_written_in, uncompiled

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

ROTATION = "model.model.rotary_emb"  # module_rotation.py compares its frequencies
# Attributes that a call reads, but that change no result, or that module_settings.py compares.
_NOT_COMPARED = {"training", "config", "gradient_checkpointing", "layer_idx", "norm_type", "inplace", CAP}
# Attributes that are always compared. If a script replaced a method, the method is not followed, and the
# attributes that it reads are not found.
_ALWAYS_COMPARED = {
    "scaling", "is_causal", "num_key_value_groups", "sliding_window", "attention_dropout", "variance_epsilon",
    "eps", "offset", "max_norm", "scale_grad_by_freq", "sparse",
}  # fmt: skip
# General settings that decide how a model is built. The other general settings are for tasks and generation.
# They are left out, because transformers would reject some values that scripts set after the build.
_BUILT_WITH = {"model_type", "pad_token_id", "tie_word_embeddings"}
# The rotation is not compared with a fresh module (see ROTATION).
_ROTATION_SETTINGS = {"rope_theta", "rope_scaling", "rope_parameters"}
_ROUNDING = 2.0**-7  # relative error of a buffer that model.to() rounded to 16 bits
_CALLED = {"forward", "_call_impl", "_wrapped_call_impl", "_slow_forward"}
# The whole model's methods that transformers' Trainer calls before and after a step.
_CALLED_BY_TRAINER = {"parameters", "named_parameters", "zero_grad"}
# accelerate's hooks on a model that device_map distributes. They move inputs and weights, and compute
# nothing.
_MOVING = ("AlignDevicesHook", "CpuOffload", "UserCpuOffloadHook", "SequentialHook", "ModelHook")
_ABSENT = object()
_OTHER_MODULE = "give a model with the library's own modules, or train with transformers' Trainer"
_SET_BACK = "set it back, or train with transformers' Trainer"
_DELETE = "delete the attribute again, or train with transformers' Trainer"
_NO_DROPOUT = "load the model with this dropout 0.0, or train with transformers' Trainer"


class ModulePair(NamedTuple):
    """A given module, its path as a script writes it, and the fresh module that has the same path."""

    path: str
    given: nn.Module
    fresh: nn.Module


def fresh_model(model: PreTrainedModel, config: Mapping[str, Any]) -> PreTrainedModel:
    """Build another `type(model)` from a config.json, with parameters on the meta device."""
    from transformers import PretrainedConfig

    from fastsft.model.generic.empty_model import empty_of, library_config

    left_out = _ROTATION_SETTINGS | PretrainedConfig().to_dict().keys() - _BUILT_WITH
    made_of = library_config({name: value for name, value in config.items() if name not in left_out})
    made_of._attn_implementation = model.config._attn_implementation
    return empty_of(lambda: type(model)(made_of), type(model).__name__)


class ComparedModules:
    """Pairs of modules with the same path in `model` and `fresh`.

    found: modules and parameters that have another class, were added or are missing. Submodules of such
    modules are not compared. equal: phrases, for messages, about replacements that compute the same.
    """

    def __init__(self, model: nn.Module, fresh: nn.Module) -> None:
        self.pairs: list[ModulePair] = []
        self.found: list[Alteration] = []
        self.equal: list[str] = []
        self._visit(path_of(""), model, fresh)

    def _visit(self, path: str, given: nn.Module, fresh: nn.Module) -> None:
        given = uncompiled_module(given)
        if not self._is_as_built(path, type(given), type(fresh)):
            return
        self.pairs.append(ModulePair(path, given, fresh))
        self.found += _other_parameters(path, given, fresh)
        children, expected = _children(given), _children(fresh)
        if equal_replacement(type(given)) or equal_replacement(type(fresh)):  # a fused kernel has no act_fn
            children, expected = (
                {name: child for name, child in each.items() if next(child.parameters(), None) is not None}
                for each in (children, expected)
            )
        for name in expected.keys() - children.keys():
            self._differs(_child_path(path, name), "is not there", type(expected[name]))
        for name, child in children.items():
            if name in expected:
                self._visit(_child_path(path, name), child, expected[name])
            else:
                found = f"is an added {described(type(uncompiled_module(child)))}"
                self.found.append(
                    Alteration(_child_path(path, name), found, "the model without it", _OTHER_MODULE)
                )

    def _is_as_built(self, path: str, kind: type, built: type) -> bool:
        if _is_librarys(kind) and _may_replace(kind, built):
            return True
        known = equal_replacement(kind)
        if known is None:
            self._differs(path, f"is {described(kind)}", built)
            return False
        self.equal.append(known)
        return True

    def _differs(self, path: str, found: str, built: type) -> None:
        expected = next((base for base in built.__mro__ if _is_librarys(base)), built)
        way_out = CONDENSED if path.endswith("rotary_emb") else _OTHER_MODULE
        self.found.append(Alteration(path, found, described(expected), way_out))


def uncompiled_module(module: nn.Module) -> nn.Module:
    """Return the module inside torch.compile's wrapper. It computes the same as the wrapper."""
    while type(module).__name__ == "OptimizedModule" and is_written_in(
        type(module).__init__, "torch._dynamo"
    ):
        module = module.get_submodule("_orig_mod")
    return module


def other_attributes(pairs: list[ModulePair], code: LibraryCode, *, training: bool) -> Iterator[Alteration]:
    """Yield attributes and buffers that a call reads and that differ from the fresh module's.

    training: True to compare dropout as well.
    """
    for path, given, fresh in pairs:
        if path == ROTATION:
            continue
        read = _ALWAYS_COMPARED | code.reads_of_modules | code.reads.get(type(given), set())
        for name in sorted(read - _NOT_COMPARED):
            value, expected = _values(name, given, fresh)
            # The flag only adds an unused mask.
            if _agree(value, expected) or (name == "has_sliding_layers" and value):
                continue
            if not _is_dropout(name, given):
                yield Alteration(f"{path}.{name}", f"is {value!r}", repr(expected), _SET_BACK)
            elif training:
                yield Alteration(f"{path}.{name}", f"is {value!r}", "no dropout", _NO_DROPOUT)
        for name, buffer in fresh._buffers.items():
            if buffer is not None and not _is_rounded(given._buffers.get(name), buffer):
                found = f"is {_begin_of(given._buffers.get(name))}"
                yield Alteration(f"{path}.{name}", found, _begin_of(buffer), _SET_BACK)


def other_configurations(pairs: list[ModulePair]) -> Iterator[Alteration]:
    """Yield modules that have their own configuration object.

    Changes to model.config do not reach these.
    """
    _, model, fresh_root = pairs[0]
    for path, given, fresh in pairs:
        is_shared = vars(fresh).get("config") is fresh_root.config
        if is_shared and vars(given).get("config", model.config) is not model.config:
            yield Alteration(
                f"{path}.config", "is another object than model.config", "model.config everywhere",
                "change the fields of model.config, not the object",
            )  # fmt: skip


def replaced_on_modules(pairs: list[ModulePair], code: LibraryCode) -> Iterator[Alteration]:
    """Yield methods and functions that a script has set on single modules.

    Replacements that compute the same are added to `code.equal` instead.
    """
    for path, given, _ in pairs:
        read = _CALLED | code.reads.get(type(given), set())
        if given is pairs[0].given:
            read = read | _CALLED_BY_TRAINER
        for name in sorted(read & vars(given).keys()):
            if _is_replaced(given, name):
                known = equal_replacement(vars(given)[name])
                if known is None or name[0] == "_":
                    yield _replaced(f"{path}.{name}", vars(given)[name])
                else:
                    code.equal.append(known)
        function = vars(given).get("_gradient_checkpointing_func")
        if function is not None and vars(given).get("gradient_checkpointing"):
            inner = function.func if isinstance(function, functools.partial) else function
            if not is_defined_there(inner, "torch.utils.checkpoint", "checkpoint"):
                yield _replaced(f"{path}._gradient_checkpointing_func", function)


def _is_replaced(module: nn.Module, name: str) -> bool:
    """Return True if the module's own attribute `name` hides another function of its class."""
    value, own = vars(module)[name], inspect.getattr_static(type(module), name, None)
    if name == "_compiled_call_impl":
        return value is not None and not _is_own_method(uncompiled(value), module, "_call_impl")
    if name == "_loss_function":
        return not is_causal_lm_loss(value)
    if not (callable(own) or isinstance(own, property)) or not callable(value):
        return False
    return not _is_own_method(uncompiled(value), module, name) and not _only_moves(module, name, value)


def _is_own_method(value: object, module: nn.Module, name: str) -> bool:
    """Return True for the class's own method, bound to the module, as after `m.forward = m.forward`."""
    own = inspect.getattr_static(type(module), name, None)
    return isinstance(value, MethodType) and value.__self__ is module and value.__func__ is own


def _only_moves(module: nn.Module, name: str, value: object) -> bool:
    """Return True for a forward that accelerate has wrapped only to move tensors between devices."""
    hook = vars(module).get("_hf_hook")
    if name != "forward" or hook is None or not isinstance(value, functools.partial):
        return False
    if not is_written_in(value.func, "accelerate.hooks") or not _is_moving(hook):
        return False
    return _is_own_method(vars(module).get("_old_forward"), module, "forward")


def _is_moving(hook: object) -> bool:
    kind, hooks = type(hook), vars(sys.modules["accelerate.hooks"])
    if kind.__name__ not in _MOVING or hooks.get(kind.__name__) is not kind:
        return False
    return all(_is_moving(inner) for inner in getattr(hook, "hooks", ()))


def _replaced(where: str, value: object) -> Alteration:
    native = "the cross entropy of the next token" if "loss" in where else "the class's own method"
    way_out = CONDENSED if "rotary_emb" in where else _DELETE
    return Alteration(where, f"is replaced by {described(value)}", native, way_out)


def _is_librarys(kind: type) -> bool:
    return is_class_of(kind, "torch") or is_class_of(kind, "transformers")


def _may_replace(kind: type, built: type) -> bool:
    """Return True if a module of class `kind` may stand for a module of class `built`.

    `built` is the class that the library now builds. The two classes can differ because the library was
    patched or reloaded after the model was built.
    """
    names = {f"{each.__module__}.{each.__qualname__}" for each in (kind, built)}
    if len(names) == 1 or any(names <= set(same) for same in SAME_ACTIVATIONS):
        return True
    return not _is_librarys(built) and (issubclass(built, kind) or equal_replacement(built) is not None)


def _other_parameters(path: str, given: nn.Module, fresh: nn.Module) -> Iterator[Alteration]:
    names, expected = (
        {name for name, parameter in module._parameters.items() if parameter is not None}
        for module in (given, fresh)
    )
    for name in names - expected:
        yield Alteration(f"{path}.{name}", "is an added parameter", "the model without it", _OTHER_MODULE)
    for name in expected - names:
        yield Alteration(f"{path}.{name}", "is no parameter", "with a trained one", _OTHER_MODULE)


def _children(module: nn.Module) -> dict[str, nn.Module]:
    return {name: child for name, child in module._modules.items() if child is not None}


def _child_path(path: str, name: str) -> str:
    return f"{path}[{name}]" if name.isdigit() else f"{path}.{name}"


def _values(name: str, given: nn.Module, fresh: nn.Module) -> tuple[object, object]:
    """Return the module's attribute and the expected value. For functions, return a pair of equal values."""
    value = vars(given).get(name, _ABSENT)
    expected = vars(fresh).get(name, getattr(type(given), name, _ABSENT))
    if name == "offset" and expected is _ABSENT:  # only the fused norm has this setting
        expected = 0.0
    is_unset = value is _ABSENT or expected is _ABSENT
    if name[0] == "_" or is_unset or callable(value) or callable(expected) or isinstance(expected, property):
        return expected, expected
    return value, expected


def _agree(value: Any, expected: Any) -> bool:
    if isinstance(value, float) and isinstance(expected, int | float):
        return math.isclose(value, expected, rel_tol=1e-6)
    try:
        return value is expected or bool(value == expected)
    except (RuntimeError, ValueError):  # tensors of several elements
        return value.shape == expected.shape and bool((value.cpu() == expected.cpu()).all())


def _is_dropout(name: str, module: nn.Module) -> bool:
    return "dropout" in name or (name == "p" and type(module).__name__ == "Dropout")


def _is_rounded(value: Any, expected: Any) -> bool:
    """Return True if `value` has the expected numbers, which may be rounded to another dtype."""
    if value is None or value.shape != expected.shape:
        return False
    return bool(value.detach().float().cpu().allclose(expected.float(), rtol=_ROUNDING, atol=0.0))


def _begin_of(buffer: Any) -> str:
    if buffer is None:
        return "not there"
    first = [round(float(value), 6) for value in buffer.detach().flatten()[:3]]
    return str(first[0] if buffer.numel() == 1 else first)
