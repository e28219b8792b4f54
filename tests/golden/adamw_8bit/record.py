"""Recorder of steps of bitsandbytes' AdamW8bit, and of transformers' Trainer with --optim adamw_8bit.

Two ops are bitsandbytes' own in Python ("default"), which its CUDA kernels follow, in place of its CPU
library: that looks codes up in a table of 65,536 entries and takes the neighbour for one in some hundred.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recording import Part, Recorder, each_file, write_json

if TYPE_CHECKING:
    import torch

OPS = ("quantize_blockwise", "dequantize_blockwise")
# A whole number of blocks, a last block of one element and of 36, and a tensor with 32 bits.
SHAPES = {"whole": (64, 64), "one": (17, 241), "part": (72, 63), "small": (63, 65)}
STEPS = 8
SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
MODEL = {
    "vocab_size": 80, "hidden_size": 64, "intermediate_size": 104, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "initializer_range": 0.3, "pad_token_id": 0,
}  # fmt: skip
FLAGS: dict[str, Any] = {
    "use_cpu": True, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
    "num_train_epochs": 4, "learning_rate": 2e-3, "weight_decay": 0.1, "lr_scheduler_type": "cosine",
    "warmup_steps": 2, "adam_beta2": 0.95, "max_grad_norm": 0.7, "logging_steps": 1,
    "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "optim": "adamw_8bit",
}  # fmt: skip
ROWS, WIDTH = 24, 24


def write_steps(path: Path) -> None:
    """Write parameters and state after every step; gradients of many sizes, and blocks of zeros."""
    import bitsandbytes
    import torch
    from bitsandbytes_rule import use_the_python_rule
    from safetensors.torch import save_file

    use_the_python_rule(*OPS)
    generator = torch.Generator().manual_seed(3)
    found: dict[str, torch.Tensor] = {
        "levels": torch.stack(
            [bitsandbytes.functional.create_dynamic_map(signed) for signed in (True, False)]
        )
    }
    for name, shape in SHAPES.items():
        weight = torch.nn.Parameter(torch.randn(shape, generator=generator))
        optimizer = bitsandbytes.optim.AdamW([weight], optim_bits=8, **SETTINGS)
        found[f"{name}.begin"] = weight.detach().clone()
        for step in range(STEPS):
            sizes = 10.0 ** torch.randint(-4, 1, shape, generator=generator)
            grad = torch.randn(shape, generator=generator) * sizes
            grad.view(-1)[512:768] = 0
            weight.grad = grad
            optimizer.step()
            state = optimizer.state[weight]
            kept = ("state1", "state2", *(("absmax1", "absmax2") if "absmax1" in state else ()))
            found |= {f"{name}.{step}.{key}": state[key].clone() for key in kept}
            found |= {f"{name}.{step}.grad": grad, f"{name}.{step}.weight": weight.detach().clone()}
    save_file(found, path)


def padded_rows() -> list[dict[str, torch.Tensor]]:
    """Return padded rows of random ids, whose second half is learned."""
    import numpy as np
    import torch

    generator = np.random.default_rng(7)
    rows = []
    for _ in range(ROWS):
        length = int(generator.integers(6, WIDTH))
        ids = torch.zeros(WIDTH, dtype=torch.long)
        ids[:length] = torch.as_tensor(generator.integers(1, MODEL["vocab_size"], length))
        labels = ids.clone()
        labels[: length // 2] = labels[length:] = -100
        mask = (torch.arange(WIDTH) < length).long()
        rows.append({"input_ids": ids, "labels": labels, "attention_mask": mask})
    return rows


def write_run(target: Path) -> None:
    import torch
    import transformers
    from bitsandbytes_rule import unrounded, use_the_python_rule
    from safetensors.torch import save_file

    use_the_python_rule(*OPS)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**MODEL))
    model.config.use_cache = False
    begin = {f"begin.{name}": tensor.clone() for name, tensor in model.state_dict().items()}
    rows = padded_rows()
    with tempfile.TemporaryDirectory() as folder:
        trainer = unrounded(transformers.Trainer)(
            model, transformers.TrainingArguments(folder, **FLAGS), transformers.default_data_collator, rows
        )
        trainer.train()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    states = {names[id(key)]: value for key, value in trainer.optimizer.optimizer.state.items()}
    data = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    end = {f"end.{name}": tensor for name, tensor in model.state_dict().items()}
    save_file({**begin, **end, **data}, target / "run.safetensors")
    recorded = {
        "model": {"model_type": "llama", **MODEL},
        "flags": FLAGS,
        "losses": [trainer.losses[step] for step in sorted(trainer.losses)],
        "in_8_bits": sorted(name for name, state in states.items() if state["state1"].dtype == torch.uint8),
        "in_32_bits": sorted(name for name, state in states.items() if state["state1"].dtype != torch.uint8),
    }
    write_json(target / "run.json", recorded)


RECORDER = Recorder(
    libraries={"bitsandbytes": "0.50.2", "transformers": "4.57.6"},
    parts={
        **each_file({"steps.safetensors": write_steps}),
        "run": Part(("run.json", "run.safetensors"), write_run),
    },
    apart=1e-5,
)
