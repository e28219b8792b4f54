"""What scripts do to a model of transformers, a LlamaForCausalLM of three layers, or to transformers."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers import modeling_utils
from transformers.loss import loss_utils
from transformers.models.llama import modeling_llama

Alter = Callable[[Any, pytest.MonkeyPatch], Any]


def _twice(function: Any) -> Any:
    """A wrapper that claims to be what it wraps."""

    @functools.wraps(function)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return forward


def echo(self: Any, hidden_states: Any, *_: Any, **__: Any) -> Any:
    return hidden_states


class Condensed(modeling_llama.LlamaRotaryEmbedding):
    """LongChat's and ToolBench's rotary in the form of this release."""

    def forward(self, x: Any, position_ids: Any) -> Any:
        return super().forward(x, position_ids / 4)


def _class_forward(name: str) -> Alter:
    def alter(_: Any, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(getattr(modeling_llama, name), "forward", echo)

    return alter


def _wrapped(name: str) -> Alter:
    def alter(_: Any, patch: pytest.MonkeyPatch) -> None:
        kind = getattr(modeling_llama, name)
        patch.setattr(kind, "forward", _twice(kind.forward))

    return alter


def _global(name: str, module: Any = modeling_llama) -> Alter:
    return lambda _, patch: patch.setattr(module, name, _twice(getattr(module, name)))


def method(name: str, function: Any) -> Alter:
    return lambda _, patch: patch.setattr(modeling_llama.LlamaModel, name, function, raising=False)


def attribute(path: str, value: Any) -> Alter:
    def alter(model: Any, _: pytest.MonkeyPatch) -> None:
        *parts, name = path.split(".")
        setattr(functools.reduce(_child, parts, model), name, value)

    return alter


def _child(owner: Any, name: str) -> Any:
    return owner[int(name)] if name.isdigit() else getattr(owner, name)


def _instance_forward(path: str) -> Alter:
    def alter(model: Any, _: pytest.MonkeyPatch) -> None:
        module = model.get_submodule(path)
        module.forward = types.MethodType(echo, module)

    return alter


def _mistral_rotation(_: Any, patch: pytest.MonkeyPatch) -> None:
    from transformers.models.glm import modeling_glm

    patch.setattr(modeling_llama, "apply_rotary_pos_emb", modeling_glm.apply_rotary_pos_emb)


def _registered(model: Any, patch: pytest.MonkeyPatch) -> None:
    table = modeling_utils.AttentionInterface._global_mapping
    patch.setitem(table, "mine", lambda *args, **kwargs: table["sdpa"](*args, **kwargs))
    model.config._attn_implementation = "mine"


def _sdpa_replaced(_: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(modeling_utils.ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", echo)


def _code_of_a_copy(_: Any, patch: pytest.MonkeyPatch) -> None:
    forward = modeling_llama.LlamaMLP.forward
    names = {**vars(modeling_llama), "__name__": modeling_llama.__name__}
    patch.setattr(modeling_llama.LlamaMLP, "forward", types.FunctionType(forward.__code__, names, "forward"))


def _cell(_: Any, patch: pytest.MonkeyPatch) -> None:
    """The function inside of the library's own decorator is another."""
    cells = modeling_llama.LlamaForCausalLM.forward.__closure__ or ()
    cell = next(cell for cell in cells if isinstance(cell.cell_contents, types.FunctionType))
    patch.setattr(cell, "cell_contents", _twice(cell.cell_contents))


def _no_grad(_: Any, patch: pytest.MonkeyPatch) -> None:
    """A decorator of torch that the file does not have there."""
    kind = modeling_llama.LlamaMLP
    patch.setattr(kind, "forward", torch.no_grad()(kind.forward))


# Case: what is done, and what the refusal must say.
REFUSED: dict[str, tuple[Alter, str]] = {
    "attention class": (
        _class_forward("LlamaAttention"),
        r"LlamaAttention\.forward is replaced by altered_models\.echo",
    ),
    "rotary class": (
        _class_forward("LlamaRotaryEmbedding"),
        r"LlamaRotaryEmbedding\.forward is replaced.*rope_scaling",
    ),
    "mlp class": (_class_forward("LlamaMLP"), r"LlamaMLP\.forward is replaced"),
    "norm class": (_class_forward("LlamaRMSNorm"), r"LlamaRMSNorm\.forward is replaced"),
    "decoder class": (_class_forward("LlamaDecoderLayer"), r"LlamaDecoderLayer\.forward is replaced"),
    "model class": (_class_forward("LlamaModel"), r"LlamaModel\.forward is replaced"),
    "causal class": (_class_forward("LlamaForCausalLM"), r"LlamaForCausalLM\.forward is replaced"),
    "wrapped with functools.wraps": (
        _wrapped("LlamaMLP"),
        r"LlamaMLP\.forward is replaced by .*LlamaMLP\.forward",
    ),
    "wrapped and decorated": (_wrapped("LlamaModel"), r"LlamaModel\.forward is replaced"),
    "no_grad": (_no_grad, r"LlamaMLP\.forward is replaced"),
    "other globals": (_code_of_a_copy, r"LlamaMLP\.forward is replaced"),
    "inside a decorator": (_cell, r"LlamaForCausalLM\.forward is replaced"),
    "call of a class": (method("__call__", echo), r"LlamaModel\.__call__ is replaced"),
    "getattr of a class": (
        method("__getattr__", lambda s, n: torch.nn.Module.__getattr__(s, n)),
        r"LlamaModel\.__getattr__",
    ),
    "torch's call": (
        lambda _, patch: patch.setattr(torch.nn.Module, "_call_impl", echo),
        r"torch\.nn\.modules\.module\.Module\._call_impl is replaced",
    ),
    "torch's Linear": (
        lambda _, patch: patch.setattr(torch.nn.Linear, "forward", echo),
        r"linear\.Linear\.forward is replaced",
    ),
    "layer's call": (
        lambda _, patch: patch.setattr(
            transformers.modeling_layers.GradientCheckpointingLayer, "__call__", echo
        ),
        r"GradientCheckpointingLayer\.__call__ is replaced",
    ),
    "apply_rotary_pos_emb": (_global("apply_rotary_pos_emb"), r"apply_rotary_pos_emb is replaced"),
    "another model's rotation": (
        _mistral_rotation,
        r"apply_rotary_pos_emb is replaced by transformers\.models\.glm",
    ),
    "rotate_half": (_global("rotate_half"), r"rotate_half is replaced"),
    "repeat_kv": (_global("repeat_kv"), r"repeat_kv is replaced"),
    "repeat_kv of sdpa": (
        _global("repeat_kv", transformers.integrations.sdpa_attention),
        r"sdpa_attention\.repeat_kv is replaced",
    ),
    "eager_attention_forward": (_global("eager_attention_forward"), r"eager_attention_forward is replaced"),
    "create_causal_mask here": (_global("create_causal_mask"), r"create_causal_mask is replaced"),
    "create_causal_mask there": (
        _global("create_causal_mask", transformers.masking_utils),
        "create_causal_mask is replaced",
    ),
    "mask inside": (
        _global("causal_mask_function", transformers.masking_utils),
        r"masking_utils\.causal_mask_function is replaced",
    ),
    "sdpa replaced": (
        _sdpa_replaced,
        r'ALL_ATTENTION_FUNCTIONS\["sdpa"\] is replaced by altered_models\.echo',
    ),
    "attention registered": (
        _registered,
        r'ALL_ATTENTION_FUNCTIONS\["mine"\] is altered_models.*attn_implementation="sdpa"',
    ),
    "torch's attention": (
        _global("scaled_dot_product_attention", torch.nn.functional),
        r"functional\.scaled_dot_product_attention is replaced",
    ),
    "torch's cross entropy": (
        _global("cross_entropy", torch.nn.functional),
        r"functional\.cross_entropy is replaced",
    ),
    "a swap inside torch": (
        lambda _, patch: patch.setattr(torch.nn.functional, "silu", torch.nn.functional.relu),
        r"functional\.silu is replaced",
    ),
    "a tensor's method": (
        lambda _, patch: patch.setattr(torch.Tensor, "pow", lambda s, n: s, raising=False),
        r"torch\.Tensor\.pow is replaced",
    ),
    "LOSS_MAPPING": (
        lambda _, patch: patch.setitem(loss_utils.LOSS_MAPPING, "ForCausalLM", echo),
        r'LOSS_MAPPING\["ForCausalLM"\] is replaced',
    ),
    "inside the loss": (_global("fixed_cross_entropy", loss_utils), r"fixed_cross_entropy is replaced"),
    "loss_function": (
        attribute("loss_function", echo),
        r"model\._loss_function is replaced by altered_models\.echo",
    ),
    "loss_type": (attribute("loss_type", "ForMaskedLM"), r"model\.loss_type is 'ForMaskedLM'"),
    "instance attention": (
        _instance_forward("model.layers.2.self_attn"),
        r"model\.model\.layers\[2\]\.self_attn\.forward is replaced by altered_models\.echo",
    ),
    "instance mlp": (
        _instance_forward("model.layers.0.mlp"),
        r"model\.model\.layers\[0\]\.mlp\.forward is replaced",
    ),
    "instance linear": (_instance_forward("lm_head"), r"model\.lm_head\.forward is replaced"),
    "instance activation": (
        _instance_forward("model.layers.0.mlp.act_fn"),
        r"layers\[0\]\.mlp\.act_fn\.forward is replaced",
    ),
    "instance model": (_instance_forward(""), r"Trainer: model\.forward is replaced"),
}
