"""What scripts do to a model of transformers without a change of what it computes, as its Trainer does."""

from __future__ import annotations

import copy
from typing import Any

import accelerate.hooks
import pytest
import torch
import transformers
from transformers import modeling_rope_utils
from transformers.models.llama import modeling_llama

from altered_models import Alter, Condensed, attribute, echo, method
from padded_items import random_items


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


def _scaled(settings: dict[str, Any], *, after: int = 0, **changes: Any) -> Alter:
    """Built with rope_scaling; it has then computed a batch of `after` tokens."""

    def alter(model: Any, _: pytest.MonkeyPatch) -> Any:
        config = copy.deepcopy(model.config)
        for name, value in {"rope_scaling": settings, **changes}.items():
            setattr(config, name, value)
        new = transformers.LlamaForCausalLM(config)
        new.load_state_dict(model.state_dict())
        if after:
            new(torch.ones((1, after), dtype=torch.long))
        return new

    return alter


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


def _padding_in_rows(model: Any, _: pytest.MonkeyPatch) -> None:
    """A token of the rows whose embedding learns nothing from them."""
    model.model.embed_tokens.padding_idx = int(random_items()[2]["input_ids"][1])


def _compiled_layer(model: Any, _: pytest.MonkeyPatch) -> None:
    model.model.layers[1] = torch.compile(model.model.layers[1], backend="eager")


def _spread(model: Any, _: pytest.MonkeyPatch) -> None:
    """As device_map leaves a model that stands on several devices."""
    hook = accelerate.hooks.AlignDevicesHook(execution_device="cpu", io_same_device=True)
    accelerate.hooks.add_hook_to_module(model.model.layers[1], hook)


# Case: what is done; transformers and the engine then compute the same.
EQUAL: dict[str, Alter] = {
    "nothing": lambda *_: None,
    "rope_scaling set after loading": _later_rope,
    "dynamic rope set after loading": _later_dynamic_rope,
    "rope_theta set after loading": attribute("config.rope_theta", 500.0),
    "rms_norm_eps set after loading": attribute("config.rms_norm_eps", 0.5),
    "another epsilon in every norm": _all_eps,
    "hidden_act set after loading": attribute("config.hidden_act", "gelu"),
    "attention_dropout set after loading": attribute("config.attention_dropout", 0.3),
    "num_attention_heads set after loading": attribute("config.num_attention_heads", 8),
    "num_key_value_heads set after loading": attribute("config.num_key_value_heads", 4),
    "more layers in the config": attribute("config.num_hidden_layers", 7),
    "linear frequencies in the buffer": _held_linear,
    "built with another base": _held_base,
    "yarn": _scaled({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
    "dynamic, after a longer batch": _scaled(
        {"rope_type": "dynamic", "factor": 4.0}, after=80, max_position_embeddings=64
    ),
    "longrope, after a longer batch": _scaled(
        {"rope_type": "longrope", "short_factor": [1.5] * 4, "long_factor": [9.0] * 4},
        after=80,
        original_max_position_embeddings=64,
        max_position_embeddings=256,
    ),
    "a layer removed": _removed_layer,
    "layers swapped": _swapped_layers,
    "eager attention": attribute("config._attn_implementation", "eager"),
    "padding_idx": _padding_in_rows,
    "a compiled layer": _compiled_layer,
    "compiled in place": lambda model, _: model.compile(backend="eager"),
    "hooks of device_map": _spread,
    "gradient checkpointing": _recomputing,
    "resized embeddings": _resized,
    "eval mode": lambda model, _: model.eval() and None,
    "forward bound again": lambda model, _: setattr(model.lm_head, "forward", model.lm_head.forward),
    "a class replaced after building": _condensed_is_gone,
    "an unused method": method("_prepare_decoder_attention_mask", echo),
    "an unused table's entry": lambda _, patch: patch.setitem(
        modeling_rope_utils.ROPE_INIT_FUNCTIONS, "yarn", echo
    ),
}
