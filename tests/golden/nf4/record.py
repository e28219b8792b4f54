"""Recorder of 4-bit weights by bitsandbytes, and of runs of FastChat's data with its 4-bit base.

Two ops are bitsandbytes' own in Python ("default"), which its CUDA kernels follow, in place of its CPU
library: that looks levels of scales up in a table of 65,536 entries and takes the neighbour for one in some
hundred, and it takes the wrong scales where the rows of a matrix are no multiple of a block, as in the models
here.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recording import GOLDEN, Recorder, each_file, write_json

if TYPE_CHECKING:
    import torch

TRAINER = GOLDEN / "trainer"
ADAPTERS = GOLDEN / "lora"
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


def values_of_cases() -> dict[str, torch.Tensor]:
    """Scales in whole groups, in a part of one, and in both; blocks of zeros, tiny and huge values."""
    import torch

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


def write_values(path: Path) -> None:
    import torch
    from bitsandbytes import functional
    from bitsandbytes_rule import use_the_python_rule
    from safetensors.torch import save_file

    use_the_python_rule(*OPS)
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
    save_file(found, path)


def record_run(name: str, folder: str) -> dict[str, Any]:
    import torch
    import transformers
    from bitsandbytes_rule import unrounded, use_the_python_rule
    from fastchat.train import train as fastchat
    from peft import PeftModel, prepare_model_for_kbit_training

    use_the_python_rule(*OPS)
    torch.use_deterministic_algorithms(True)
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


def write_run(name: str, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_json(path, record_run(name, folder))


RECORDER = Recorder(
    libraries={"bitsandbytes": "0.50.2", "peft": "0.21.2", "transformers": "4.57.6", "fschat": "0.2.36"},
    parts=each_file(
        {
            "values.safetensors": write_values,
            **{f"{name}.json": partial(write_run, name) for name in RUNS},
        }
    ),
    apart=1e-5,
)
