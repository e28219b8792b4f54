"""Records steps of bitsandbytes 0.50's AdamW8bit, and a run of transformers' Trainer with --optim adamw_8bit.

Needs bitsandbytes and transformers:

    python tests/golden/adamw_8bit/record.py

Two ops are bitsandbytes' own in Python ("default"), which its CUDA kernels follow, in place of its CPU
library: that looks codes up in a table of 65,536 entries and takes the neighbour for one in some hundred.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bitsandbytes
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
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


def use_the_python_rule() -> None:
    """OPS on a CPU are those of bitsandbytes' default backend."""
    import bitsandbytes._ops as ops

    rules: dict[str, Callable[..., Any]] = {}

    def noted(name: str, backend: str) -> Any:
        return lambda function: rules.setdefault(name.rpartition("::")[2], function)

    registered, ops.register_kernel = ops.register_kernel, noted
    sys.modules.pop("bitsandbytes.backends.default.ops", None)
    import bitsandbytes.backends.default.ops  # noqa: F401

    ops.register_kernel = registered
    library = torch.library.Library("bitsandbytes", "IMPL")
    for name in OPS:
        library.impl(name, rules[name], "CPU", allow_override=True)
    globals()["_kept"] = library  # the override ends with it


def record_steps() -> None:
    """Parameters and state after every step; gradients of many sizes, and blocks of zeros."""
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
    save_file(found, HERE / "steps.safetensors")


class Rows(torch.utils.data.Dataset):
    """Padded rows of random ids; the second half is learned."""

    def __init__(self) -> None:
        generator = np.random.default_rng(7)
        self.rows = []
        for _ in range(ROWS):
            length = int(generator.integers(6, WIDTH))
            ids = torch.zeros(WIDTH, dtype=torch.long)
            ids[:length] = torch.as_tensor(generator.integers(1, MODEL["vocab_size"], length))
            labels = ids.clone()
            labels[: length // 2] = labels[length:] = -100
            mask = (torch.arange(WIDTH) < length).long()
            self.rows.append({"input_ids": ids, "labels": labels, "attention_mask": mask})

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return self.rows[row]


def record_run() -> None:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**MODEL))
    model.config.use_cache = False
    begin = {f"begin.{name}": tensor.clone() for name, tensor in model.state_dict().items()}
    rows = Rows()
    with tempfile.TemporaryDirectory() as folder:
        trainer = unrounded(transformers.Trainer)(
            model, transformers.TrainingArguments(folder, **FLAGS), transformers.default_data_collator, rows
        )
        trainer.train()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    states = {names[id(key)]: value for key, value in trainer.optimizer.optimizer.state.items()}
    data = {key: torch.stack([row[key] for row in rows.rows]) for key in rows.rows[0]}
    end = {f"end.{name}": tensor for name, tensor in model.state_dict().items()}
    save_file({**begin, **end, **data}, HERE / "run.safetensors")
    recorded = {
        "model": {"model_type": "llama", **MODEL},
        "flags": FLAGS,
        "losses": [trainer.losses[step] for step in sorted(trainer.losses)],
        "in_8_bits": sorted(name for name, state in states.items() if state["state1"].dtype == torch.uint8),
        "in_32_bits": sorted(name for name, state in states.items() if state["state1"].dtype != torch.uint8),
    }
    (HERE / "run.json").write_text(json.dumps(recorded, indent=1) + "\n")
    print([round(loss, 5) for loss in recorded["losses"]], recorded["in_32_bits"])


def unrounded(trainer: type) -> type:
    """A Trainer that keeps its losses as they are before they are rounded."""

    class Unrounded(trainer):  # type: ignore[misc, valid-type]
        def _maybe_log_save_evaluate(self, tr_loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            self.losses = {self.state.global_step: tr_loss.item(), **getattr(self, "losses", {})}
            super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)

    return Unrounded


def main() -> None:
    use_the_python_rule()
    record_steps()
    record_run()


if __name__ == "__main__":
    main()
