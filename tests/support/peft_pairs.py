"""An engine and peft's model with the same random weights and adapters; peft judges the engine."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from fastsft import _C
from runs import append_labelled

SIZES = {
    "vocab_size": 64,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
LENGTHS = [3, 26, 11, 2, 40, 7]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEAR = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
Case = tuple[dict[str, Any], dict[str, Any]]
CASES: dict[str, Case] = {
    "llama, all linears, rsLoRA, ranks that differ": (
        {"model_type": "llama"},
        {
            "target_modules": LINEAR,
            "use_rslora": True,
            "rank_pattern": {"k_proj": 3, "down_proj": 5},
            "alpha_pattern": {"v_proj": 7, "1.mlp.gate_proj": 2},
        },
    ),
    "mistral, q and v": (
        {"model_type": "mistral", "sliding_window": 5},
        {"target_modules": ["q_proj", "v_proj"]},
    ),
    "qwen2, tied, biases of the adapted are trained": (
        {"model_type": "qwen2", "tie_word_embeddings": True},
        {"target_modules": ["q_proj", "v_proj", "down_proj"], "bias": "lora_only"},
    ),
    "qwen2, all biases are trained": (
        {"model_type": "qwen2"},
        {"target_modules": ["o_proj", "gate_proj"], "bias": "all"},
    ),
    "qwen3, tied, all linears": (
        {"model_type": "qwen3", "tie_word_embeddings": True},
        {"target_modules": LINEAR},
    ),
    "qwen3, biases, the last layer": (
        {"model_type": "qwen3", "attention_bias": True},
        {"target_modules": ["k_proj", "up_proj"], "layers_to_transform": [2]},
    ),
    "llama, MLP biases, the head too": (
        {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
        {"target_modules": ["down_proj", "lm_head"], "layers_to_transform": None},
    ),
    "llama, the head alone": ({"model_type": "llama"}, {"target_modules": ["lm_head"]}),
    "llama, head and embedding are trained whole": (
        {"model_type": "llama"},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    ),
    "qwen3, norms are trained": (
        {"model_type": "qwen3"},
        {"target_modules": ["up_proj"], "modules_to_save": ["q_norm", "input_layernorm"]},
    ),
}


def engine_name(name: str) -> str:
    """The engine's name of a parameter of peft's model."""
    for part in (".default", ".base_layer", ".modules_to_save"):
        name = name.replace(part, "")
    return name.removeprefix("base_model.model.")


def adapter_options(model: Any, dropout: float = 0.0) -> _C.AdapterOptions:
    """What peft's model trains, as the engine takes it."""
    modules = [(name, module) for name, module in model.named_modules() if hasattr(module, "lora_A")]
    linears = [
        _C.AdapterLinear(engine_name(name), rank=module.r["default"], scale=module.scaling["default"])
        for name, module in modules
    ]
    trained = [engine_name(name) for name, parameter in model.named_parameters() if parameter.requires_grad]
    return _C.AdapterOptions(
        linears=linears, dropout=dropout, trained=[name for name in trained if ".lora_" not in name]
    )


class PeftPair:
    """Both models, and conversations of uneven length."""

    def __init__(
        self,
        case: Case,
        groups: dict[str, Any] | None = None,
        adapters_dropout: float = 0.0,
        **options: Any,
    ) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoConfig, AutoModelForCausalLM

        from engines import new_engine

        torch.manual_seed(0)
        config = AutoConfig.for_model(**{**SIZES, **case[0]})
        base = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        lora = LoraConfig(**{"r": 4, "lora_alpha": 6, "lora_dropout": 0.0, **case[1]})
        self.config_json = json.dumps(config.to_dict())
        self.model = get_peft_model(base, lora).eval()
        for name, parameter in self.model.named_parameters():
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
            elif ".lora_" in name:
                torch.nn.init.normal_(parameter, std=0.2)
        self.adapters = adapter_options(self.model, adapters_dropout)
        self.engine = new_engine(self.config_json, adapters=self.adapters, **options, **(groups or {}))
        for name, parameter in self.model.named_parameters():
            if engine_name(name) in self.engine.parameter_shapes:
                self.engine.set_parameter(engine_name(name), parameter.detach())
        self.engine.publish()
        self.ids = [torch.randint(1, 64, (length,)) for length in LENGTHS]  # 0 pads: no gradient there
        self.weights = np.linspace(0.01, 0.05, len(LENGTHS))
        self.dataset = _C.TokenDataset()
        for ids, labels in zip(self.ids, map(self.labels, self.ids), strict=True):
            append_labelled(self.dataset, ids.tolist(), labels.tolist())

    def labels(self, ids: torch.Tensor) -> torch.Tensor:
        """Everything but the first two fifths is learned."""
        labels = ids.clone()
        labels[: 2 * len(labels) // 5 + 1] = -100
        return labels

    def expected_loss(self) -> torch.Tensor:
        """Each conversation alone: nothing depends on padding or packing."""
        losses = []
        for self.row, (ids, weight) in enumerate(zip(self.ids, self.weights, strict=True)):
            logits = self.model(input_ids=ids[None]).logits[0]
            loss = torch.nn.functional.cross_entropy(logits[:-1], self.labels(ids)[1:], reduction="sum")
            losses.append(weight * loss)
        return torch.stack(losses).sum()

    def expected(self) -> tuple[float, dict[str, torch.Tensor]]:
        """Loss and gradients by the engine's names."""
        loss = self.expected_loss()
        loss.backward()
        gradients = {
            engine_name(name): parameter.grad
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        return loss.item(), gradients

    def gradients(self) -> tuple[float, dict[str, torch.Tensor]]:
        rows = np.arange(len(self.ids))[self.engine.rank :: self.engine.world_size]
        return self.engine.gradients(self.dataset, rows, self.weights[rows])
