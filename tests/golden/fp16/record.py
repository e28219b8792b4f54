"""Recorder of runs in float16 of transformers' Trainer with FastChat's data and torch.amp.GradScaler.

accelerate leaves fp16 out on a CPU without a word; the recorder gives it the scaler and the autocast that
it has on a GPU. Autocast computes some ops in float32 that fastsft computes in float16, so losses are
compared with a tolerance of float16; scales, skipped steps and learning rates are compared exactly. In
`overflows` every step overflows. In `short_answers` those with few labels do, whose loss is divided by
less: the scale falls, grows and falls again.

Weight gradients of autocast are float16, those of fastsft float32: where nothing but the product of a
weight gradient is too large, transformers skips a step that fastsft makes. None of these steps is such a
one.
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from recording import GOLDEN, Recorder, each_file, write_json

TRAINER = GOLDEN / "trainer"
# name: (model, data, first scale, growth interval, flags)
RUNS: dict[str, tuple[str, str, float, int, dict[str, Any]]] = {
    "first_scale": ("model_untied", "first50", 65536.0, 2000, {}),
    "overflows": ("model_untied", "first50", 2.0**27, 2000, {"lr_scheduler_type": "linear"}),
    "short_answers": (
        "model_tied",
        "short_answers",
        2.0**17,
        3,
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1},
    ),
}
KEPT = ("step", "epoch", "grad_norm", "learning_rate")
FLAGS = {
    "use_cpu": True, "fp16": True, "model_max_length": 256, "learning_rate": 1e-3, "logging_steps": 1,
    "lr_scheduler_type": "cosine", "warmup_ratio": 0.03, "weight_decay": 0.0, "num_train_epochs": 1,
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "save_strategy": "no",
    "report_to": "none", "disable_tqdm": True, "logging_nan_inf_filter": False,
}  # fmt: skip


def write_short_answers(path: Path) -> None:
    """Write ten conversations of first50, and three of two labelled tokens."""
    rows = json.loads((TRAINER / "data" / "first50.json").read_text())[:10]
    for i in range(3):
        talk = [{"from": "human", "value": f"Say ok, {i}."}, {"from": "gpt", "value": "ok"}]
        rows.append({"id": f"short_{i}", "conversations": talk})
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")


def data_file(name: str) -> Path:
    found = [path for path in (GOLDEN / "fp16", TRAINER) if (path / "data" / f"{name}.json").exists()]
    return found[0] / "data" / f"{name}.json"


def record_run(name: str, folder: str) -> dict[str, Any]:
    import torch
    import transformers
    from fastchat.train import train as fastchat

    model_name, rows, scale, interval, more = RUNS[name]
    flags = {**FLAGS, **more, "output_dir": folder}
    args = fastchat.TrainingArguments(**flags)
    model = transformers.AutoModelForCausalLM.from_pretrained(TRAINER / model_name, torch_dtype=torch.float32)
    model.config.use_cache = False
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        TRAINER / model_name, model_max_length=256, padding_side="right", use_fast=False
    )
    tokenizer.pad_token = tokenizer.unk_token
    data = fastchat.DataArguments(data_path=str(data_file(rows)))
    module = fastchat.make_supervised_data_module(tokenizer=tokenizer, data_args=data)
    trainer = noting(transformers.Trainer)(model=model, tokenizer=tokenizer, args=args, **module)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    trainer.accelerator.scaler, trainer.accelerator.native_amp = scaler, True
    trainer.train()
    steps = [
        {**{key: entry[key] for key in KEPT}, **trainer.noted[entry["step"]]}
        for entry in trainer.state.log_history
        if "loss" in entry
    ]
    return {
        "flags": {**FLAGS, **more, "model_name_or_path": model_name, "data_path": f"{rows}.json"},
        "scale": scale,
        "growth_interval": interval,
        "steps": steps,
        "last_scale": scaler.get_scale(),
        "final": {
            key: {"shape": list(value.shape), "l2": value.detach().double().norm().item()}
            for key, value in model.named_parameters()
        },
    }


def noting(trainer: type) -> type:
    """A Trainer that keeps its losses as they are before they are rounded, and the scale after a step."""

    class Noting(trainer):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.noted: dict[int, dict[str, float]] = {}
            super().__init__(*args, **kwargs)

        def _maybe_log_save_evaluate(self, tr_loss: Any, *args: Any, **kwargs: Any) -> Any:
            scaler = self.accelerator.scaler
            noted = {"loss": tr_loss.item(), "scale": scaler.get_scale()}
            self.noted.setdefault(self.state.global_step, noted)
            return super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)

    return Noting


def write_run(name: str, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_json(path, record_run(name, folder))


RECORDER = Recorder(
    libraries={"torch": "2.11.0", "transformers": "4.57.6", "fschat": "0.2.36", "accelerate": "1.15.0"},
    parts=each_file(
        {
            "data/short_answers.json": write_short_answers,
            **{f"{name}.json": partial(write_run, name) for name in RUNS},
        }
    ),
    apart=1e-5,
)
