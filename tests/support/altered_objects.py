"""What scripts do to the object: its modules, parameters, hooks and the numbers that they hold."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama import modeling_llama

from altered_models import Alter, Condensed, attribute


class Quantised(torch.nn.Linear):
    """Another class in the place of a Linear."""


def _hooked(register: str) -> Alter:
    return lambda model, _: getattr(model.model.layers[1].mlp, register)(lambda *_: None) and None


def _parameter_hooked(register: str) -> Alter:
    return lambda model, _: getattr(model.lm_head.weight, register)(lambda *_: None) and None


def _global_hook(_: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(torch.nn.modules.module._global_forward_hooks, 7, lambda *_: None)


def _yarn_without_scale(model: Any, _: pytest.MonkeyPatch) -> Any:
    config = copy.deepcopy(model.config)
    config.rope_scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    new = transformers.LlamaForCausalLM(config)
    new.model.rotary_emb.attention_scaling = 1.0
    return new


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


# Case: what is done, and what the refusal must say.
REFUSED_OBJECTS: dict[str, tuple[Alter, str]] = {
    "forward hook": (
        _hooked("register_forward_hook"),
        r"model\.model\.layers\[1\]\.mlp has a forward hook, altered_objects\._hooked",
    ),
    "forward pre-hook": (
        _hooked("register_forward_pre_hook"),
        r"layers\[1\]\.mlp has a forward pre-hook.*remove\(\)",
    ),
    "backward hook": (_hooked("register_full_backward_hook"), r"layers\[1\]\.mlp has a backward hook"),
    "backward pre-hook": (
        _hooked("register_full_backward_pre_hook"),
        r"layers\[1\]\.mlp has a backward pre-hook",
    ),
    "global hook": (_global_hook, r"torch\.nn\.modules\.module has a global forward hook"),
    "gradient hook": (_parameter_hooked("register_hook"), r"model\.lm_head\.weight has a gradient hook"),
    "post-accumulate hook": (
        _parameter_hooked("register_post_accumulate_grad_hook"),
        r"model\.lm_head\.weight has a post-accumulate hook",
    ),
    "weight norm": (_parametrized, r"layers\[0\]\.mlp\.up_proj is torch\.nn\.utils\.parametrize.*Linear"),
    "linear subclass": (
        _linear_subclass,
        r"layers\[0\]\.mlp\.up_proj is altered_objects\.Quantised; fastsft would compute torch\.nn",
    ),
    "condensed rope": (
        _condensed_class,
        r'model\.model\.rotary_emb is altered_models\.Condensed.*"type": "linear"',
    ),
    "rotary of an instance": (
        lambda model, _: setattr(model.model, "rotary_emb", Condensed(model.config)),
        r"model\.model\.rotary_emb is altered_models\.Condensed",
    ),
    "subclass of the same name": (
        _subclassed,
        r"modeling_llama\.LlamaForCausalLM, got altered_objects.*a class of the same name",
    ),
    "inv_freq": (_inv_freq, r"model\.model\.rotary_emb\.inv_freq starts"),
    "attention_scaling": (
        attribute("model.rotary_emb.attention_scaling", 0.5),
        r"rotary_emb\.attention_scaling is 0\.5",
    ),
    "attention_scaling of yarn": (
        _yarn_without_scale,
        r"rotary_emb\.attention_scaling is 1\.0; fastsft would compute 1\.138",
    ),
    "rope_type": (attribute("model.rotary_emb.rope_type", "dynamic"), r"rotary_emb\.rope_type is 'dynamic'"),
    "scaling": (
        attribute("model.layers.0.self_attn.scaling", 0.5),
        r"layers\[0\]\.self_attn\.scaling is 0\.5; fastsft would compute 0\.35",
    ),
    "is_causal": (
        attribute("model.layers.0.self_attn.is_causal", False),
        r"layers\[0\]\.self_attn\.is_causal is False",
    ),
    "one norm": (
        attribute("model.layers.2.input_layernorm.variance_epsilon", 0.1),
        r"layers\[2\]\.input_layernorm\.variance_epsilon is 0\.1",
    ),
    "groups": (
        attribute("model.layers.0.self_attn.num_key_value_groups", 1),
        r"layers\[0\]\.self_attn\.num_key_value_groups is 1",
    ),
    "held dropout": (
        attribute("model.layers.1.self_attn.attention_dropout", 0.1),
        r"layers\[1\]\.self_attn\.attention_dropout is 0\.1",
    ),
    "embedding's max_norm": (
        attribute("model.embed_tokens.max_norm", 1.0),
        r"embed_tokens\.max_norm is 1\.0",
    ),
    "another config object": (
        lambda model, _: setattr(model, "config", copy.deepcopy(model.config)),
        r"model\.model\.config is another object",
    ),
    "fewer layers in the config": (
        attribute("config.num_hidden_layers", 2),
        r"model\.config\.num_hidden_layers is 2; fastsft would compute.*3 layers",
    ),
    "shared layer": (_shared_layer, r"layers\[2\].*shares its memory with model\.model\.layers\[1\]"),
    "added module": (
        _added_module,
        r"layers\[0\]\.mlp\.adapter is an added torch\.nn\.modules\.linear\.Linear",
    ),
    "added parameter": (_added_parameter, r"layers\[0\]\.gain is an added parameter"),
    "tied by hand": (_tied_by_hand, r"model\.lm_head\.weight is the tensor.*tie_word_embeddings = True"),
    "frozen": (lambda model, _: model.lm_head.requires_grad_(False) and None, r"lm_head\.weight is frozen"),
    "data parallel": (lambda model, _: torch.nn.DataParallel(model), r"got DataParallel.*model\.module"),
}
