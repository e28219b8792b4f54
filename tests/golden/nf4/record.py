"""Records what bitsandbytes 0.50 makes of weights, and runs of FastChat's data with its 4-bit base.

Needs bitsandbytes, peft, fschat and transformers' Trainer:

    python tests/golden/nf4/record.py

Two ops are bitsandbytes' own in Python ("default"), which its CUDA kernels follow, in place of its CPU
library: that looks levels of scales up in a table of 65,536 entries and takes the neighbour for one in some
hundred, and it takes the wrong scales where the rows of a matrix are no multiple of a block, as in the models
here.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
TRAINER = HERE.parent / "trainer"
ADAPTERS = HERE.parent / "lora"
# name: (model, data, adapter that it begins with, flags)
RUNS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "q_v": ("model_untied", "first50", "q_v_adapter", {}),
    "all_linear_decay": (
        "model_tied",
        "first48",
        "all_linear_decay_adapter",
        {"weight_decay": 0.1, "lr_scheduler_type": "linear"},
    ),
}
KEPT = ("step", "epoch", "grad_norm", "learning_rate")
OPS = ("quantize_blockwise", "dequantize_4bit")
FLAGS = {
    "use_cpu": True, "model_max_length": 256, "learning_rate": 1e-3, "logging_steps": 1,
    "lr_scheduler_type": "cosine", "warmup_ratio": 0.03, "weight_decay": 0.0, "num_train_epochs": 1,
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "save_strategy": "no",
    "report_to": "none", "disable_tqdm": True,
}  # fmt: skip


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


def values_of_cases() -> dict[str, torch.Tensor]:
    """Scales in whole groups, in a part of one, and in both; blocks of zeros, tiny and huge values."""
    generator = torch.Generator().manual_seed(5)

    def normal(blocks: int) -> torch.Tensor:
        return torch.randn(blocks * 64, generator=generator) * 0.02

    odd = normal(12).view(12, 64)
    odd[0] = 0
    odd[1] = 1e-40
    odd[2, 1:] = 0
    odd[3] = torch.linspace(-1, 1, 64)
    odd[4] *= 1e30
    odd[5] = -3.0
    cases = {"part": normal(96), "whole": normal(256), "both": normal(300), "odd": odd.flatten()}
    return {**cases, **{f"{name}_bfloat16": cases[name].bfloat16() for name in ("both", "odd")}}


def record_values() -> None:
    from bitsandbytes import functional
    from safetensors.torch import save_file

    found = {"levels": torch.cat([functional.get_4bit_type("nf4", "cpu"), functional.create_dynamic_map()])}
    for name, values in values_of_cases().items():
        packed, state = functional.quantize_4bit(values, compress_statistics=True, quant_type="nf4")
        assert state.blocksize == 64 and state.state2.blocksize == 256
        found |= {
            f"{name}.values": values,
            f"{name}.pairs": packed.flatten(),
            f"{name}.levels_of_scales": state.absmax,
            f"{name}.scales": torch.cat([state.offset.view(1), state.state2.absmax]),
            f"{name}.dequantized": functional.dequantize_4bit(packed, state).flatten(),
        }
    save_file(found, HERE / "values.safetensors")


def record_run(name: str, folder: str) -> dict[str, Any]:
    import transformers
    from fastchat.train import train as fastchat
    from peft import PeftModel, prepare_model_for_kbit_training

    model_name, rows, adapter, more = RUNS[name]
    flags = {**FLAGS, **more, "output_dir": folder}
    args = fastchat.TrainingArguments(**flags)
    quantization = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_use_double_quant=True, bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.float32,
    )  # fmt: skip
    base = transformers.AutoModelForCausalLM.from_pretrained(
        TRAINER / model_name, quantization_config=quantization, torch_dtype=torch.float32
    )
    base.config.use_cache = False
    base = prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        TRAINER / model_name, model_max_length=256, padding_side="right", use_fast=False
    )
    tokenizer.pad_token = tokenizer.unk_token
    data = fastchat.DataArguments(data_path=str(TRAINER / "data" / f"{rows}.json"))
    model = PeftModel.from_pretrained(base, ADAPTERS / adapter, is_trainable=True)
    for module in model.modules():  # the recorded curve has no random numbers
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    module = fastchat.make_supervised_data_module(tokenizer=tokenizer, data_args=data)
    trainer = unrounded(transformers.Trainer)(model=model, tokenizer=tokenizer, args=args, **module)
    trainer.train()
    steps = [
        {**{key: entry[key] for key in KEPT}, "loss": trainer.losses[entry["step"]]}
        for entry in trainer.state.log_history
        if "loss" in entry
    ]
    trained = {key: value for key, value in model.named_parameters() if value.requires_grad}
    return {
        "flags": {**FLAGS, **more, "model_name_or_path": model_name, "data_path": f"{rows}.json"},
        "adapter": adapter,
        "steps": steps,
        "final_adapter": {
            key: {"shape": list(value.shape), "l2": value.detach().double().norm().item()}
            for key, value in trained.items()
        },
    }


def unrounded(trainer: type) -> type:
    """A Trainer that keeps its losses as they are before they are rounded."""

    class Unrounded(trainer):  # type: ignore[misc, valid-type]
        def _maybe_log_save_evaluate(self, tr_loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            self.losses = {self.state.global_step: tr_loss.item(), **getattr(self, "losses", {})}
            super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)

    return Unrounded


def main() -> None:
    torch.use_deterministic_algorithms(True)
    use_the_python_rule()
    record_values()
    for name in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            recorded = record_run(name, folder)
        (HERE / f"{name}.json").write_text(json.dumps(recorded, indent=1) + "\n")
        print(name, [round(step["loss"], 5) for step in recorded["steps"]])


if __name__ == "__main__":
    main()
