"""Recorder of torchao's casts to 8-bit floats, and of loss curves with its recipes, emulated on a CPU.

The models are transformers' in bfloat16, with float32 masters and AdamW here: gradients go to the masters,
whose roundings are the weights of the next step. torchao takes the linear layers of the blocks, and the
head stays.
Recipes with `wgrad` are torchao's `rowwise` and `tensorwise`. Without it the weight gradients are products
of the operands before the cast: torchao's `rowwise_with_gw_hp`, and its `tensorwise` with that change.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recording import Recorder, each_file, write_json

if TYPE_CHECKING:
    import torch

STEPS, BATCH, LENGTH, VOCAB = 30, 4, 48, 96
CONFIG = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
MODELS = {
    "phi3 of 2 layers": {"model_type": "phi3", "num_hidden_layers": 2},
    "phi3 of 12 layers": {"model_type": "phi3", "num_hidden_layers": 12},
    "llama of 2 layers": {"model_type": "llama", "num_hidden_layers": 2},
    "llama of 12 layers": {"model_type": "llama", "num_hidden_layers": 12},
}
RECIPES = ("bfloat16", "rowwise", "tensorwise", "rowwise wgrad", "tensorwise wgrad")
# name: (format, one scale a row, scales are powers of two)
CASTS = {
    "rowwise": ("e4m3", True, True),
    "rowwise_hybrid": ("e5m2", True, True),
    "tensorwise": ("e4m3", False, False),
    "tensorwise_hybrid": ("e5m2", False, False),
    "backward_weight": ("e4m3", False, True),
}
COLUMNS = ("rowwise", "rowwise_hybrid")  # casts that a weight gradient's operands have by columns


def matrices() -> dict[str, torch.Tensor]:
    """Return matrices with usual values, and with rows of zeros, tiny, huge and equal ones."""
    import torch

    generator = torch.Generator().manual_seed(3)
    usual = torch.randn(24, 80, generator=generator)
    odd = torch.randn(9, 48, generator=generator)
    odd[0] = 0
    odd[1] *= 1e-14
    odd[2] *= 1e30
    odd[3] = torch.linspace(-448, 448, 48)
    odd[4] = 1.75
    odd[5, 1:] *= 1e-6
    odd[6] = torch.logspace(-30, 3, 48, base=2.0)
    small = odd[[0, 3, 4, 6, 7, 8]].clone()
    return {
        name: value
        for part, matrix in {"usual": usual, "odd": odd, "small": small}.items()
        for name, value in ((part, matrix.bfloat16()), (f"{part}_float32", matrix))
    }


def write_casts(path: Path) -> None:
    """Write each matrix, and the bytes and factors of each cast of it."""
    import torch
    from safetensors.torch import save_file
    from torchao.float8.config import ScalingGranularity
    from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated

    kinds = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    made = {}
    for name, x in matrices().items():
        made[name] = x
        casts = {cast: (cast, -1) for cast in CASTS} | {f"{cast}_columns": (cast, 0) for cast in COLUMNS}
        for label, (cast, dim) in casts.items():
            kind, rowwise, power_of_2 = CASTS[cast]
            granularity = ScalingGranularity.AXISWISE if rowwise else ScalingGranularity.TENSORWISE
            factor = tensor_to_scale(
                x, kinds[kind], scaling_granularity=granularity, axiswise_dim=dim if rowwise else None,
                round_scales_to_power_of_2=power_of_2,
            )  # fmt: skip
            values = to_fp8_saturated(x.float() * factor, kinds[kind])
            made[f"{name}.{label}.bytes"] = values.view(torch.uint8)
            made[f"{name}.{label}.factors"] = factor.reshape(-1).clone()
    save_file(made, path)


def rows() -> list[list[int]]:
    """Return rows of tokens of which the next follows from the last one in nine cases of ten."""
    import numpy as np

    generator, made = np.random.default_rng(0), []
    for _ in range(STEPS * BATCH):
        row = [int(generator.integers(1, VOCAB))]
        while len(row) < LENGTH:
            is_free = generator.random() < 0.1
            row.append(int(generator.integers(1, VOCAB)) if is_free else row[-1] * 5 % (VOCAB - 1) + 1)
        made.append(row)
    return made


def new_weights(shapes: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return weights by name: norms are about 1."""
    import torch

    generator, made = torch.Generator().manual_seed(0), {}
    for name in sorted(shapes):
        fresh = 0.05 * torch.randn(shapes[name], generator=generator)
        made[name] = 1 + fresh if name.endswith("norm.weight") else fresh
    return made


def in_8_bits(model: torch.nn.Module, recipe: str) -> None:
    """Give the blocks' linear layers to torchao."""
    import torch
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.config import CastConfig, ScalingType

    names = {"rowwise": "rowwise_with_gw_hp", "rowwise wgrad": "rowwise", "tensorwise wgrad": "tensorwise"}
    if recipe in names:
        config = Float8LinearConfig.from_recipe_name(names[recipe])
    else:
        kept = CastConfig(scaling_type=ScalingType.DISABLED)
        config = Float8LinearConfig(
            cast_config_input_for_grad_weight=kept,
            cast_config_grad_output_for_grad_weight=dataclasses.replace(kept, target_dtype=torch.float8_e5m2),
        )
    convert_to_float8_training(
        model,
        module_filter_fn=lambda _, name: name != "lm_head",
        config=dataclasses.replace(config, emulate=True),
    )


def curve(config: dict[str, Any], recipe: str) -> list[float]:
    """Return the loss of each step, token mean."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="sdpa")
    model.config.use_cache = False
    weights = new_weights({name: value.shape for name, value in model.named_parameters()})
    masters = {name: torch.nn.Parameter(value) for name, value in weights.items()}
    model.to(torch.bfloat16)
    if recipe != "bfloat16":
        in_8_bits(model, recipe)
    optimizer = torch.optim.AdamW(masters.values(), lr=2e-3, weight_decay=0.0)
    all_rows, losses = torch.tensor(rows()), []
    for step in range(STEPS):
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(masters[name])
        ids = all_rows[step * BATCH : (step + 1) * BATCH]
        logits = model(ids).logits.float()
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
        loss.backward()
        losses.append(loss.item())
        for name, value in model.named_parameters():
            masters[name].grad, value.grad = value.grad.float(), None
        torch.nn.utils.clip_grad_norm_(masters.values(), 1.0)
        optimizer.step()
    return losses


def write_curves(path: Path) -> None:
    """Write each model's configuration and its losses by recipe."""
    import torch

    torch.set_num_threads(1)
    models = {}
    for name, changes in MODELS.items():
        config = {**CONFIG, **changes}
        models[name] = {"config": config, "losses": {recipe: curve(config, recipe) for recipe in RECIPES}}
    write_json(path, {"rows": rows(), "models": models}, indent=0)


RECORDER = Recorder(
    libraries={"torchao": "0.18.0", "transformers": "4.57.6", "torch": "2.11.0"},
    parts=each_file({"casts.safetensors": write_casts, "curves.json": write_curves}),
    apart=5e-3,
)
