"""Small vision-text models of the installed transformers, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

VOCAB = 96
_TEXT = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_VISION = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 16, "patch_size": 8,
}  # fmt: skip
_LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
_QWEN_VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32,
    "num_position_embeddings": 16, "patch_size": 4,
}  # fmt: skip
_WINDOWS = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"] * 2}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
# Of each family: text configuration, vision configuration, and the rest.
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "gemma3": ({**_TEXT, **_WINDOWS}, _VISION, {"mm_tokens_per_image": 1, "image_token_index": 90}),
    "gemma4": (
        {**_TEXT, **_WINDOWS, "global_head_dim": 8, "hidden_size_per_layer_input": 0,
         "vocab_size_per_layer_input": VOCAB},
        {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4, "position_embedding_size": 16},
        {"audio_config": None, "image_token_id": 90, "video_token_id": 91, "audio_token_id": 92},
    ),
    "llama4": (
        {**_TEXT, "intermediate_size": 16, "intermediate_size_mlp": 48, "num_local_experts": 2,
         "moe_layers": [1, 3], "no_rope_layers": [1, 0, 1, 1], "attention_chunk_size": 6},
        {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
         "image_size": 16, "patch_size": 8, "vision_output_dim": 24, "projector_input_dim": 24,
         "projector_output_dim": 24},
        {"image_token_index": 90, "boi_token_index": 88, "eoi_token_index": 89},
    ),
    "mistral3": (
        {"model_type": "mistral", **_TEXT},
        {"model_type": "pixtral", **_VISION, "head_dim": 8},
        {"image_token_index": 90, "spatial_merge_size": 1},
    ),
    "qwen3_5": ({**_TEXT, **_LINEAR}, _QWEN_VISION, {"image_token_id": 90, "video_token_id": 91}),
    "qwen3_5_moe": (
        {**_TEXT, **_LINEAR, **_EXPERTS, "shared_expert_intermediate_size": 16},
        _QWEN_VISION, {"image_token_id": 90, "video_token_id": 91},
    ),
}  # fmt: skip


def has_family(family: str) -> bool:
    """True if the installed transformers has it."""
    return family in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES


def vision_text_model(family: str, **text: Any) -> Any:
    """The whole model. text: more of its text configuration."""
    own, vision, rest = FAMILIES[family]
    config = transformers.AutoConfig.for_model(
        family, text_config={**own, **text}, vision_config=vision, tie_word_embeddings=False, **rest
    )
    torch.manual_seed(3)
    model = transformers.AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():  # more than a step's change, and no two alike
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


def saved_model(family: str, folder: Path, dtype: torch.dtype = torch.float32, **text: Any) -> Path:
    """Its directory as save_pretrained writes it, with the file of a processor."""
    vision_text_model(family, **text).to(dtype).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5]}\n')
    return folder
