"""Recorder of logits, loss and gradients of one batch for tiny models of each native family, by transformers.

Weights and inputs are the same to the bit on every processor, the rest nearly. Norm weights and biases are
random too, so that errors in them show. Attention is eager for Gemma, because sdpa has no soft caps, and sdpa
for the others; `summary.json` says how far the other implementation is.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from recording import Part, Recorder, write_json

from native_families import FAMILIES

SMALL = {
    "vocab_size": 512, "hidden_size": 32, "intermediate_size": 72, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "initializer_range": 0.1, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
GEMMA = {"head_dim": 12, "query_pre_attn_scalar": 10, "sliding_window": 7}
GEMMA |= {"layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": True}
# name: seed, configuration beyond SMALL. Families without a row have their tests' configuration.
MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "llama": (7, {"model_type": "llama", "rms_norm_eps": 1e-5}),
    "llama_tied_mha": (8, {"model_type": "llama", "num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama_mqa_biases": (
        9, {"model_type": "llama", "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True},
    ),
    "llama_rope_linear": (10, {
        "model_type": "llama", "max_position_embeddings": 32,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    }),
    "llama_rope_llama3": (11, {"model_type": "llama", "rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE}),
    "qwen2": (12, {"model_type": "qwen2", "rope_theta": 1000000.0, "tie_word_embeddings": True}),
    "qwen3": (13, {"model_type": "qwen3", "head_dim": 16, "rope_theta": 1000000.0}),
    "mistral": (14, {"model_type": "mistral", "sliding_window": None, "head_dim": 12}),
    "gemma2": (15, {
        "model_type": "gemma2", **GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
    }),
    "gemma3": (16, {
        "model_type": "gemma3_text", **GEMMA, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }),
    "phi3": (15, {"model_type": "phi3", "sliding_window": 12}),
}  # fmt: skip
RECORDED = {settings["model_type"] for _, settings in MODELS.values()}
MODELS |= {family: (17, settings) for family, settings in FAMILIES.items() if family not in RECORDED}
FILES = (
    "config.json", "generation_config.json", "model.safetensors", "inputs.safetensors",
    "logits.safetensors", "grads.safetensors", "summary.json",
)  # fmt: skip
OTHER_ATTENTION = {"sdpa": "eager", "eager": "sdpa"}
WITH_EAGER_ATTENTION = ("gemma2", "gemma3")


def batch(seed: int, rows: int = 3, length: int = 40) -> dict[str, Any]:
    """Return right-padded rows of different lengths. About half of the tokens have labels, the first none."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 512, (rows, length), generator=generator)
    ids[:, 0] = 1
    lengths = torch.tensor([length - 9 * row for row in range(rows)])
    mask = torch.arange(length) < lengths[:, None]
    ids[~mask] = 0
    labels = ids.clone()
    labels[~mask | (torch.rand(rows, length, generator=generator) < 0.5)] = -100
    labels[:, 0] = -100
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}


def write(name: str, target: Path) -> None:
    """Write the model, its batch, and the results of transformers."""
    import torch
    from random_models import write_random
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    folder = target / name
    seed, settings = MODELS[name]
    write_random(folder, {**SMALL, **settings}, seed)
    used = "eager" if name in WITH_EAGER_ATTENTION else "sdpa"
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=used)
    inputs = batch(seed)
    outputs = model(**inputs)
    outputs.loss.backward()
    grads = {key: parameter.grad for key, parameter in model.named_parameters()}
    save_file(inputs, folder / "inputs.safetensors")
    save_file({"logits": outputs.logits.detach()}, folder / "logits.safetensors")
    save_file(grads, folder / "grads.safetensors")
    tokens = inputs["labels"].ne(-100).sum()
    other = OTHER_ATTENTION[used]
    with torch.no_grad():
        divided = model(**inputs, num_items_in_batch=2 * tokens).loss
        theirs = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=other)(**inputs).logits
    apart = (theirs - outputs.logits)[inputs["attention_mask"].bool()].abs().max()
    summary = {
        "loss": outputs.loss.item(),
        "label_tokens": int(tokens),
        "loss_with_twice_the_items": divided.item(),
        "grad_norm": torch.stack([grad.norm() for grad in grads.values()]).norm().item(),
        "grad_norms": {key: grad.norm().item() for key, grad in grads.items()},
        "attention": used,
        "largest_logit": outputs.logits.abs().max().item(),
        f"largest_difference_to_{other}_attention": apart.item(),
    }
    write_json(folder / "summary.json", summary)


RECORDER = Recorder(
    libraries={"torch": "2.11.0", "transformers": "4.57.6", "safetensors": "0.8.0"},
    parts={
        name: Part(tuple(f"{name}/{file}" for file in FILES), partial(write, name)) for name in MODELS
    },
    apart=1e-5,
)  # fmt: skip
