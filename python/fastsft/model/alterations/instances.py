"""Attributes of module objects that a call of them would find before those of their class."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from types import MethodType
from typing import TYPE_CHECKING

from fastsft.model.alterations.finding import Alteration
from fastsft.model.alterations.known import equal_replacement
from fastsft.model.alterations.reach import CONDENSED, Reach
from fastsft.model.alterations.registries import is_causal_lm_loss
from fastsft.model.alterations.tree import Node, Tree
from fastsft.originals.functions import described, is_defined_there, is_written_in, uncompiled

if TYPE_CHECKING:
    from torch import nn

_CALLED = {"forward", "_call_impl", "_wrapped_call_impl", "_slow_forward"}
# Of the whole model, by transformers' Trainer around a step.
_CALLED_BY_TRAINER = {"parameters", "named_parameters", "zero_grad"}
_WAY_OUT = "delete the attribute again, or train with transformers' Trainer"
# accelerate's hooks of a model that device_map spreads: they move inputs and weights, and compute nothing.
_MOVING = ("AlignDevicesHook", "CpuOffload", "UserCpuOffloadHook", "SequentialHook", "ModelHook")


def replaced_on_instances(tree: Tree, reach: Reach) -> Iterator[Alteration]:
    """Methods and functions that were set on a module of the tree alone; known equal ones go to `reach`."""
    for node in tree.nodes:
        read = _CALLED | reach.reads.get(type(node.module), set())
        if node is tree.nodes[0]:
            read = read | _CALLED_BY_TRAINER
        for name in sorted(read & vars(node.module).keys()):
            yield from _replaced(node, name, reach)
        yield from _checkpointing(node)


def _replaced(node: Node, name: str, reach: Reach) -> Iterator[Alteration]:
    value, where = vars(node.module)[name], f"{node.path}.{name}"
    own = inspect.getattr_static(type(node.module), name, None)
    if name == "_compiled_call_impl":
        inner = uncompiled(value)
        if value is not None and not _is_own_method(inner, node.module, "_call_impl"):
            yield _alteration(where, value)
    elif name == "_loss_function":
        if not is_causal_lm_loss(value):
            yield _alteration(where, value)
    elif own is not None and (callable(own) or isinstance(own, property)) and callable(value):
        if _is_own_method(uncompiled(value), node.module, name) or _only_moves(node.module, name, value):
            return
        known = equal_replacement(value)
        if known is None:
            yield _alteration(where, value)
        else:
            reach.equal.append(known)


def _is_own_method(value: object, module: nn.Module, name: str) -> bool:
    """True if this is the class's own method bound to the module, as `m.forward = m.forward` leaves it."""
    own = inspect.getattr_static(type(module), name, None)
    return isinstance(value, MethodType) and value.__self__ is module and value.__func__ is own


def _only_moves(module: nn.Module, name: str, value: object) -> bool:
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


def _checkpointing(node: Node) -> Iterator[Alteration]:
    """The function of gradient checkpointing: torch's computes the same again."""
    function = vars(node.module).get("_gradient_checkpointing_func")
    if function is None or not vars(node.module).get("gradient_checkpointing"):
        return
    inner = function.func if isinstance(function, functools.partial) else function
    if not is_defined_there(inner, "torch.utils.checkpoint", "checkpoint"):
        yield _alteration(f"{node.path}._gradient_checkpointing_func", function)


def _alteration(where: str, value: object) -> Alteration:
    native = "the cross entropy of the next token" if "loss" in where else "the class's own method"
    way_out = CONDENSED if "rotary_emb" in where else _WAY_OUT
    return Alteration(where, f"is replaced by {described(value)}", native, way_out)
