"""An engine and peft's model with the same random weights and adapters; peft judges the engine."""

from __future__ import annotations

import json
from typing import Any

import torch

from adapted_models import LENGTHS, AdaptedModel, labels_of

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
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEAR = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
FUSED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]  # Phi-3's
EXPERTS = {"num_experts_per_tok": 2}
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
    "gemma3, all linears": (
        {"model_type": "gemma3_text", "sliding_window": 5, "sliding_window_pattern": 2},
        {"target_modules": LINEAR},
    ),
    "gemma2, the last layer and its norms": (
        {"model_type": "gemma2", "sliding_window": 5, "attn_logit_softcapping": 2.0},
        {
            "target_modules": ["o_proj", "down_proj"],
            "layers_to_transform": [2],
            "modules_to_save": ["post_attention_layernorm", "post_feedforward_layernorm"],
        },
    ),
    "qwen3, biases, the last layer": (
        {"model_type": "qwen3", "attention_bias": True},
        {"target_modules": ["k_proj", "up_proj"], "layers_to_transform": [2]},
    ),
    "llama, MLP biases, the head too": (
        {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
        {"target_modules": ["down_proj", "lm_head"]},
    ),
    "llama, the head alone": ({"model_type": "llama"}, {"target_modules": ["lm_head"]}),
    "llama, head and embedding are trained whole": (
        {"model_type": "llama"},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    ),
    "llama, every linear and the head, rsLoRA, every bias": (
        {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
        {"target_modules": [*LINEAR, "lm_head"], "use_rslora": True, "bias": "all"},
    ),
    "phi3, fused projections": (
        {"model_type": "phi3", "sliding_window": 5},
        {"target_modules": FUSED, "rank_pattern": {"qkv_proj": 3, "1.mlp.down_proj": 5}},
    ),
    "phi3, tied, gate and up": (
        {"model_type": "phi3", "tie_word_embeddings": True},
        {"target_modules": ["gate_up_proj"], "modules_to_save": ["o_proj", "input_layernorm"]},
    ),
    "qwen3_moe, attention": (
        {"model_type": "qwen3_moe", **EXPERTS, "num_experts": 3, "moe_intermediate_size": 12},
        {"target_modules": ATTENTION, "use_rslora": True, "rank_pattern": {"k_proj": 3}},
    ),
    "qwen3_moe, biases, the last layer": (
        {
            "model_type": "qwen3_moe",
            **EXPERTS,
            "num_experts": 3,
            "moe_intermediate_size": 12,
            "attention_bias": True,
        },
        {"target_modules": ["o_proj"], "layers_to_transform": [2], "bias": "all"},
    ),
    "mixtral, q and v, the head too": (
        {"model_type": "mixtral", **EXPERTS, "num_local_experts": 4},
        {"target_modules": ["q_proj", "v_proj", "lm_head"]},
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


def random_peft(case: Case) -> Any:
    """transformers' model under peft, nothing of it zero."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**SIZES, **case[0]})
    base = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    lora = LoraConfig(**{"r": 4, "lora_alpha": 6, "lora_dropout": 0.0, **case[1]})
    model = get_peft_model(base, lora).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
        elif ".lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def adapted_model(model: Any) -> AdaptedModel:
    """What peft's model is and trains, as the engine takes it."""
    modules = [(name, module) for name, module in model.named_modules() if hasattr(module, "lora_A")]
    named = [item for item in model.named_parameters() if ".original_module." not in item[0]]
    trained = [engine_name(name) for name, parameter in named if parameter.requires_grad]
    return AdaptedModel(
        config_json=json.dumps(model.config.to_dict()),
        linears=[
            (engine_name(name), module.r["default"], module.scaling["default"]) for name, module in modules
        ],
        trained=[name for name in trained if ".lora_" not in name],
        parameters={engine_name(name): parameter.detach() for name, parameter in named},
        ids=[torch.randint(1, 64, (length,)) for length in LENGTHS],  # 0 pads: no gradient there
    )


class PeftPair:
    """Both models; peft's is the judge."""

    def __init__(self, case: str | Case, **options: Any) -> None:
        self.model = random_peft(CASES[case] if isinstance(case, str) else case)
        self.subject = adapted_model(self.model)
        self.engine = self.subject.engine(**options)
        self.dataset, self.weights, self.ids = self.subject.dataset(), self.subject.weights, self.subject.ids

    def expected_loss(self) -> torch.Tensor:
        """Each conversation alone: nothing depends on padding or packing."""
        losses = []
        for row, (ids, weight) in enumerate(zip(self.ids, self.weights, strict=True)):
            self.row = row
            logits = self.model(input_ids=ids[None]).logits[0]
            loss = torch.nn.functional.cross_entropy(logits[:-1], labels_of(ids)[1:], reduction="sum")
            losses.append(weight * loss)
        return torch.stack(losses).sum()

    def expected(self) -> tuple[float, dict[str, torch.Tensor]]:
        """Loss and gradients by the engine's names."""
        loss = self.expected_loss()
        loss.backward()
        named = self.model.named_parameters()
        gradients = {engine_name(name): value.grad for name, value in named if value.requires_grad}
        return loss.item(), gradients

    def gradients(self, **options: Any) -> tuple[float, dict[str, torch.Tensor]]:
        return self.subject.gradients(self.engine, **options)
