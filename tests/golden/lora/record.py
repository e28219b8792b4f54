"""Recorder of training with adapters: FastChat's data, peft's adapters, transformers' Trainer, step by step.

FastChat's train_lora.py does the same under DeepSpeed. The adapter that a run begins with lies next to it:
peft's first values plus noise in B, so that both factors have gradients in the first step.
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from fastchat_runs import ALWAYS, LIBRARIES, Run, launch
from recording import GOLDEN, Part, Recorder, write_json

TRAINER = GOLDEN / "trainer"
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
COMMON = {"learning_rate": 5e-3, "num_train_epochs": 1, "lora_dropout": 0.0}
DECAYING = {"weight_decay": 0.1, "lr_scheduler_type": "linear"}
SMALLER = {"lora_r": 4, "lora_alpha": 8, "lora_target_modules": ALL_LINEAR}
RUNS = {
    "q_v": Run("model_untied", "first50", 1, {}),
    "all_linear_decay": Run("model_tied", "first50", 1, {**SMALLER, **DECAYING}),
    "q_v_two_processes": Run("model_untied", "first50", 2, {"per_device_train_batch_size": 2}),
}
# Defaults of FastChat's LoraArguments.
LORA: dict[str, Any] = {"lora_r": 8, "lora_alpha": 16, "lora_target_modules": ["q_proj", "v_proj"]}


def write_adapter(run: Run, folder: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TRAINER / run.model)
    lora = {**LORA, **run.flags}
    config = LoraConfig(
        r=lora["lora_r"], lora_alpha=lora["lora_alpha"], target_modules=lora["lora_target_modules"],
        lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
    )  # fmt: skip
    torch.manual_seed(77)
    wrapped = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.add_(torch.randn_like(parameter) * 0.02)
    wrapped.peft_config["default"].base_model_name_or_path = run.model
    wrapped.save_pretrained(folder)
    (folder / "README.md").unlink()


def write(name: str, folder: Path) -> None:
    """Write the adapter and the run that trains it."""
    run = RUNS[name]
    adapter = folder / f"{name}_adapter"
    write_adapter(run, adapter)
    flags = {**ALWAYS, **COMMON, **run.flags}
    taken = {key: value for key, value in flags.items() if not key.startswith("lora_")}
    data = TRAINER / "data" / f"{run.data}.json"
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "result.json"
        paths = {"model_name_or_path": TRAINER / run.model, "data_path": data, "output_dir": Path(scratch)}
        launch(run, taken, paths, out, str(adapter))
        recorded = json.loads(out.read_text())
    names = {
        "model_name_or_path": run.model,
        "data_path": f"{run.data}.json",
        "lora_weight_path": adapter.name,
    }
    write_json(folder / f"{name}.json", {"flags": {**flags, **names}, **recorded})


def files(name: str) -> tuple[str, ...]:
    folder = f"{name}_adapter"
    return f"{name}.json", f"{folder}/adapter_config.json", f"{folder}/adapter_model.safetensors"


RECORDER = Recorder(
    libraries={**LIBRARIES, "peft": "0.21.2"},
    parts={name: Part(files(name), partial(write, name)) for name in RUNS},
    apart=1e-5,
)
