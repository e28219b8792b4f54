"""What scripts do to a model of transformers, or to transformers: each alters a LlamaForCausalLM of three layers."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers import modeling_rope_utils, modeling_utils
from transformers.loss import loss_utils
from transformers.models.llama import modeling_llama

Alter = Callable[[Any, pytest.MonkeyPatch], Any]


def _twice(function: Any) -> Any:
    """A wrapper that claims to be what it wraps."""

    @functools.wraps(function)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return forward


def _forward(self: Any, hidden_states: Any, *_: Any, **__: Any) -> Any:
    return hidden_states


class Condensed(modeling_llama.LlamaRotaryEmbedding):
    """LongChat's and ToolBench's rotary in the form of this release."""

    def forward(self, x: Any, position_ids: Any) -> Any:
        return super().forward(x, position_ids / 4)


class Quantised(torch.nn.Linear):
    """Another class in the place of a Linear."""


def _class_forward(name: str) -> Alter:
    def alter(_: Any, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(getattr(modeling_llama, name), "forward", _forward)

    return alter


def _wrapped(name: str) -> Alter:
    def alter(_: Any, patch: pytest.MonkeyPatch) -> None:
        kind = getattr(modeling_llama, name)
        patch.setattr(kind, "forward", _twice(kind.forward))

    return alter


def _global(name: str, module: Any = modeling_llama) -> Alter:
    return lambda _, patch: patch.setattr(module, name, _twice(getattr(module, name)))


def _method(name: str, function: Any) -> Alter:
    return lambda _, patch: patch.setattr(modeling_llama.LlamaModel, name, function, raising=False)


def _attribute(path: str, value: Any) -> Alter:
    def alter(model: Any, _: pytest.MonkeyPatch) -> None:
        *parts, name = path.split(".")
        setattr(functools.reduce(_child, parts, model), name, value)

    return alter


def _child(owner: Any, name: str) -> Any:
    return owner[int(name)] if name.isdigit() else getattr(owner, name)


def _instance_forward(path: str) -> Alter:
    def alter(model: Any, _: pytest.MonkeyPatch) -> None:
        module = model.get_submodule(path)
        module.forward = types.MethodType(_forward, module)

    return alter


def _hooked(register: str) -> Alter:
    return lambda model, _: getattr(model.model.layers[1].mlp, register)(lambda *_: None) and None


def _parameter_hooked(register: str) -> Alter:
    return lambda model, _: getattr(model.lm_head.weight, register)(lambda *_: None) and None


def _global_hook(_: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(torch.nn.modules.module._global_forward_hooks, 7, lambda *_: None)


def _condensed_class(_: Any, patch: pytest.MonkeyPatch) -> Any:
    patch.setattr(modeling_llama, "LlamaRotaryEmbedding", Condensed)
    return copy_of(transformers.LlamaForCausalLM, _)


def copy_of(kind: Any, model: Any) -> Any:
    """A new model of this class with the same weights."""
    new = kind(copy.deepcopy(model.config))
    new.load_state_dict(model.state_dict())
    return new


def _subclassed(model: Any, _: pytest.MonkeyPatch) -> Any:
    class LlamaForCausalLM(transformers.LlamaForCausalLM):
        """The same name, another class."""

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    return copy_of(LlamaForCausalLM, model)


def _mistral_rotation(_: Any, patch: pytest.MonkeyPatch) -> None:
    from transformers.models.glm import modeling_glm

    patch.setattr(modeling_llama, "apply_rotary_pos_emb", modeling_glm.apply_rotary_pos_emb)


def _registered(model: Any, patch: pytest.MonkeyPatch) -> None:
    table = modeling_utils.AttentionInterface._global_mapping
    patch.setitem(table, "mine", lambda *args, **kwargs: table["sdpa"](*args, **kwargs))
    model.config._attn_implementation = "mine"


def _sdpa_replaced(_: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(modeling_utils.ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", _forward)


def _shared_layer(model: Any, _: pytest.MonkeyPatch) -> None:
    model.model.layers[2] = model.model.layers[1]


def _added_module(model: Any, _: pytest.MonkeyPatch) -> None:
    model.model.layers[0].mlp.adapter = torch.nn.Linear(32, 32)


def _added_parameter(model: Any, _: pytest.MonkeyPatch) -> None:
    model.model.layers[0].register_parameter("gain", torch.nn.Parameter(torch.ones(1)))


def _parametrized(model: Any, _: pytest.MonkeyPatch) -> None:
    torch.nn.utils.parametrizations.weight_norm(model.model.layers[0].mlp.up_proj)


def _linear_subclass(model: Any, _: pytest.MonkeyPatch) -> None:
    model.model.layers[0].mlp.up_proj = Quantised(32, 56, bias=False)


def _tied_by_hand(model: Any, _: pytest.MonkeyPatch) -> None:
    model.lm_head.weight = model.model.embed_tokens.weight


def _inv_freq(model: Any, _: pytest.MonkeyPatch) -> None:
    model.model.rotary_emb.inv_freq[1] *= 2


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


HIDDEN = "model.model.layers[1].mlp"
LLAMA = r"transformers\.models\.llama\.modeling_llama\."
# Case: what is done, and what the refusal must say.
REFUSED: dict[str, tuple[Alter, str]] = {
    "attention class": (_class_forward("LlamaAttention"), LLAMA + r"LlamaAttention\.forward is replaced by altered_models\._forward"),
    "rotary class": (_class_forward("LlamaRotaryEmbedding"), LLAMA + r"LlamaRotaryEmbedding\.forward is replaced.*rope_scaling"),
    "mlp class": (_class_forward("LlamaMLP"), LLAMA + r"LlamaMLP\.forward is replaced"),
    "norm class": (_class_forward("LlamaRMSNorm"), LLAMA + r"LlamaRMSNorm\.forward is replaced"),
    "decoder class": (_class_forward("LlamaDecoderLayer"), LLAMA + r"LlamaDecoderLayer\.forward is replaced"),
    "model class": (_class_forward("LlamaModel"), LLAMA + r"LlamaModel\.forward is replaced"),
    "causal class": (_class_forward("LlamaForCausalLM"), LLAMA + r"LlamaForCausalLM\.forward is replaced"),
    "wrapped with functools.wraps": (_wrapped("LlamaMLP"), LLAMA + r"LlamaMLP\.forward is replaced by .*LlamaMLP\.forward"),
    "wrapped and decorated": (_wrapped("LlamaModel"), LLAMA + r"LlamaModel\.forward is replaced"),
    "no_grad": (_no_grad, LLAMA + r"LlamaMLP\.forward is replaced"),
    "other globals": (_code_of_a_copy, LLAMA + r"LlamaMLP\.forward is replaced"),
    "inside a decorator": (_cell, LLAMA + r"LlamaForCausalLM\.forward is replaced"),
    "call of a class": (_method("__call__", _forward), LLAMA + r"LlamaModel\.__call__ is replaced"),
    "getattr of a class": (_method("__getattr__", lambda s, n: torch.nn.Module.__getattr__(s, n)), LLAMA + r"LlamaModel\.__getattr__"),
    "torch's call": (lambda _, patch: patch.setattr(torch.nn.Module, "_call_impl", _forward), r"torch\.nn\.modules\.module\.Module\._call_impl is replaced"),
    "torch's Linear": (lambda _, patch: patch.setattr(torch.nn.Linear, "forward", _forward), r"linear\.Linear\.forward is replaced"),
    "layer's call": (lambda _, patch: patch.setattr(transformers.modeling_layers.GradientCheckpointingLayer, "__call__", _forward), r"GradientCheckpointingLayer\.__call__ is replaced"),
    "apply_rotary_pos_emb": (_global("apply_rotary_pos_emb"), LLAMA + "apply_rotary_pos_emb is replaced"),
    "another model's rotation": (_mistral_rotation, LLAMA + r"apply_rotary_pos_emb is replaced by transformers\.models\.glm"),
    "rotate_half": (_global("rotate_half"), LLAMA + "rotate_half is replaced"),
    "repeat_kv": (_global("repeat_kv"), LLAMA + "repeat_kv is replaced"),
    "repeat_kv of sdpa": (_global("repeat_kv", transformers.integrations.sdpa_attention), r"sdpa_attention\.repeat_kv is replaced"),
    "eager_attention_forward": (_global("eager_attention_forward"), LLAMA + "eager_attention_forward is replaced"),
    "create_causal_mask here": (_global("create_causal_mask"), LLAMA + "create_causal_mask is replaced"),
    "create_causal_mask there": (_global("create_causal_mask", transformers.masking_utils), "create_causal_mask is replaced"),
    "mask inside": (_global("causal_mask_function", transformers.masking_utils), r"masking_utils\.causal_mask_function is replaced"),
    "sdpa replaced": (_sdpa_replaced, r'ALL_ATTENTION_FUNCTIONS\["sdpa"\] is replaced by altered_models\._forward'),
    "attention registered": (_registered, r'ALL_ATTENTION_FUNCTIONS\["mine"\] is altered_models.*attn_implementation="sdpa"'),
    "torch's attention": (_global("scaled_dot_product_attention", torch.nn.functional), r"functional\.scaled_dot_product_attention is replaced"),
    "torch's cross entropy": (_global("cross_entropy", torch.nn.functional), r"functional\.cross_entropy is replaced"),
    "a swap inside torch": (lambda _, patch: patch.setattr(torch.nn.functional, "silu", torch.nn.functional.relu), r"functional\.silu is replaced"),
    "a tensor's method": (lambda _, patch: patch.setattr(torch.Tensor, "pow", lambda s, n: s, raising=False), r"torch\.Tensor\.pow is replaced"),
    "LOSS_MAPPING": (lambda _, patch: patch.setitem(loss_utils.LOSS_MAPPING, "ForCausalLM", _forward), r'LOSS_MAPPING\["ForCausalLM"\] is replaced'),
    "inside the loss": (_global("fixed_cross_entropy", loss_utils), r"fixed_cross_entropy is replaced"),
    "loss_function": (_attribute("loss_function", _forward), r"model\._loss_function is replaced by altered_models\._forward"),
    "loss_type": (_attribute("loss_type", "ForMaskedLM"), r"model\.loss_type is 'ForMaskedLM'"),
    "instance attention": (_instance_forward("model.layers.2.self_attn"), r"model\.model\.layers\[2\]\.self_attn\.forward is replaced by altered_models\._forward"),
    "instance mlp": (_instance_forward("model.layers.0.mlp"), r"model\.model\.layers\[0\]\.mlp\.forward is replaced"),
    "instance linear": (_instance_forward("lm_head"), r"model\.lm_head\.forward is replaced"),
    "instance activation": (_instance_forward("model.layers.0.mlp.act_fn"), r"layers\[0\]\.mlp\.act_fn\.forward is replaced"),
    "instance model": (_instance_forward(""), r"Trainer: model\.forward is replaced"),
    "forward hook": (_hooked("register_forward_hook"), r"model\.model\.layers\[1\]\.mlp has a forward hook, altered_models\._hooked"),
    "forward pre-hook": (_hooked("register_forward_pre_hook"), r"layers\[1\]\.mlp has a forward pre-hook.*remove\(\)"),
    "backward hook": (_hooked("register_full_backward_hook"), r"layers\[1\]\.mlp has a backward hook"),
    "backward pre-hook": (_hooked("register_full_backward_pre_hook"), r"layers\[1\]\.mlp has a backward pre-hook"),
    "global hook": (_global_hook, r"torch\.nn\.modules\.module has a global forward hook"),
    "gradient hook": (_parameter_hooked("register_hook"), r"model\.lm_head\.weight has a gradient hook"),
    "post-accumulate hook": (_parameter_hooked("register_post_accumulate_grad_hook"), r"model\.lm_head\.weight has a post-accumulate hook"),
    "weight norm": (_parametrized, r"layers\[0\]\.mlp\.up_proj is torch\.nn\.utils\.parametrize.*Linear"),
    "linear subclass": (_linear_subclass, r"layers\[0\]\.mlp\.up_proj is altered_models\.Quantised; fastsft would compute torch\.nn"),
    "condensed rope": (_condensed_class, r'model\.model\.rotary_emb is altered_models\.Condensed.*"type": "linear"'),
    "rotary of an instance": (lambda model, _: setattr(model.model, "rotary_emb", Condensed(model.config)), r"model\.model\.rotary_emb is altered_models\.Condensed"),
    "subclass of the same name": (_subclassed, r"expected model to be transformers\.models\.llama\.modeling_llama\.LlamaForCausalLM, got altered_models.*a class of the same name"),
    "inv_freq": (_inv_freq, r"model\.model\.rotary_emb\.inv_freq starts"),
    "attention_scaling": (_attribute("model.rotary_emb.attention_scaling", 0.5), r"rotary_emb\.attention_scaling is 0\.5"),
    "rope_type": (_attribute("model.rotary_emb.rope_type", "dynamic"), r"rotary_emb\.rope_type is 'dynamic'"),
    "scaling": (_attribute("model.layers.0.self_attn.scaling", 0.5), r"layers\[0\]\.self_attn\.scaling is 0\.5; fastsft would compute 0\.35"),
    "is_causal": (_attribute("model.layers.0.self_attn.is_causal", False), r"layers\[0\]\.self_attn\.is_causal is False"),
    "one norm": (_attribute("model.layers.2.input_layernorm.variance_epsilon", 0.1), r"layers\[2\]\.input_layernorm\.variance_epsilon is 0\.1"),
    "groups": (_attribute("model.layers.0.self_attn.num_key_value_groups", 1), r"layers\[0\]\.self_attn\.num_key_value_groups is 1"),
    "held dropout": (_attribute("model.layers.1.self_attn.attention_dropout", 0.1), r"layers\[1\]\.self_attn\.attention_dropout is 0\.1"),
    "embedding's max_norm": (_attribute("model.embed_tokens.max_norm", 1.0), r"embed_tokens\.max_norm is 1\.0"),
    "another config object": (lambda model, _: setattr(model, "config", copy.deepcopy(model.config)), r"model\.model\.config is another object"),
    "fewer layers in the config": (_attribute("config.num_hidden_layers", 2), r"model\.config\.num_hidden_layers is 2; fastsft would compute.*3 layers"),
    "shared layer": (_shared_layer, r"layers\[2\].*shares its memory with model\.model\.layers\[1\]"),
    "added module": (_added_module, r"layers\[0\]\.mlp\.adapter is an added torch\.nn\.modules\.linear\.Linear"),
    "added parameter": (_added_parameter, r"layers\[0\]\.gain is an added parameter"),
    "tied by hand": (_tied_by_hand, r"model\.lm_head\.weight is the tensor.*tie_word_embeddings = True"),
    "frozen": (lambda model, _: model.lm_head.requires_grad_(False) and None, r"lm_head\.weight is frozen"),
    "data parallel": (lambda model, _: torch.nn.DataParallel(model), r"got DataParallel.*model\.module"),
}  # fmt: skip


def _later_rope(model: Any, _: pytest.MonkeyPatch) -> None:
    model.config.rope_scaling = {"type": "linear", "factor": 4.0}


def _later_dynamic_rope(model: Any, _: pytest.MonkeyPatch) -> None:
    model.config.rope_scaling = {"rope_type": "dynamic", "factor": 4.0}


def _removed_layer(model: Any, _: pytest.MonkeyPatch) -> None:
    del model.model.layers[1]


def _swapped_layers(model: Any, _: pytest.MonkeyPatch) -> None:
    layers = model.model.layers
    layers[0], layers[2] = layers[2], layers[0]


def _held_linear(model: Any, _: pytest.MonkeyPatch) -> None:
    model.model.rotary_emb.inv_freq /= 2.5


def _held_base(model: Any, _: pytest.MonkeyPatch) -> Any:
    config = copy.deepcopy(model.config)
    config.rope_theta = 500000.0
    new = transformers.LlamaForCausalLM(config)
    new.load_state_dict(model.state_dict())
    new.config.rope_theta = 10000.0
    return new


def _recomputing(model: Any, _: pytest.MonkeyPatch) -> None:
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()


def _resized(model: Any, _: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    model.resize_token_embeddings(80)


def _all_eps(model: Any, _: pytest.MonkeyPatch) -> None:
    for name, module in model.named_modules():
        if name.endswith("norm"):
            module.variance_epsilon = 0.05


def _condensed_is_gone(model: Any, patch: pytest.MonkeyPatch) -> None:
    """Replaced after the model was built, which reads the name no more."""
    patch.setattr(modeling_llama, "LlamaRotaryEmbedding", Condensed)


# Case: what is done; transformers and the engine then compute the same.
EQUAL: dict[str, Alter] = {
    "nothing": lambda *_: None,
    "rope_scaling set after loading": _later_rope,
    "dynamic rope set after loading": _later_dynamic_rope,
    "rope_theta set after loading": _attribute("config.rope_theta", 500.0),
    "rms_norm_eps set after loading": _attribute("config.rms_norm_eps", 0.5),
    "another epsilon in every norm": _all_eps,
    "hidden_act set after loading": _attribute("config.hidden_act", "gelu"),
    "attention_dropout set after loading": _attribute("config.attention_dropout", 0.3),
    "num_attention_heads set after loading": _attribute("config.num_attention_heads", 8),
    "num_key_value_heads set after loading": _attribute("config.num_key_value_heads", 4),
    "more layers in the config": _attribute("config.num_hidden_layers", 7),
    "linear frequencies in the buffer": _held_linear,
    "built with another base": _held_base,
    "a layer removed": _removed_layer,
    "layers swapped": _swapped_layers,
    "eager attention": _attribute("config._attn_implementation", "eager"),
    "gradient checkpointing": _recomputing,
    "resized embeddings": _resized,
    "eval mode": lambda model, _: model.eval() and None,
    "compiled in place": lambda model, _: setattr(model, "_compiled_call_impl", None),
    "forward bound again": lambda model, _: setattr(model.lm_head, "forward", model.lm_head.forward),
    "a class replaced after building": _condensed_is_gone,
    "an unused method": _method("_prepare_decoder_attention_mask", _forward),
    "an unused table's entry": lambda _, patch: patch.setitem(modeling_rope_utils.ROPE_INIT_FUNCTIONS, "yarn", _forward),
}  # fmt: skip
