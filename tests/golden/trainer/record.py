"""Recorder of FastChat's training with transformers' Trainer on tiny Llama models, step by step.

Two models: one with four key-value heads in two files (`legacy` false), one with tied embeddings and grouped
queries (`legacy` true). Conversations without any label are put where the sampling order of seed 42 makes
them a whole micro-batch (`dropped`), or a whole accumulation group (`dropped_group`). Learning rates are
those before step 0, 1, 2, ... until three steps past the end, base rate 1e-3.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from fastchat_runs import LIBRARIES, Run, record
from recording import GOLDEN, Part, Recorder, each_file, write_json

from golden_text import read_records

HERE = GOLDEN / "trainer"
LLAMA = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 32, "intermediate_size": 88,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 2048,
    "initializer_range": 0.1, "rms_norm_eps": 1e-5, "pad_token_id": 0,
}  # fmt: skip
TOKENIZER_FILES = ("special_tokens_map.json", "tokenizer.model", "tokenizer_config.json")
TWO_FILES = tuple(f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
# name: seed, tokenizer, configuration beyond LLAMA, files of weights
MODELS: dict[str, tuple[int, str, dict[str, Any], tuple[str, ...]]] = {
    "model_untied": (
        1, "llama2_nonlegacy", {"num_key_value_heads": 4, "tie_word_embeddings": False},
        (*TWO_FILES, "model.safetensors.index.json"),
    ),
    "model_tied": (
        2, "llama2_legacy", {"num_key_value_heads": 2, "tie_word_embeddings": True}, ("model.safetensors",),
    ),
}  # fmt: skip
WITHOUT_LABELS = (
    "ends_with_human", "reply_contains_eos", "user_contains_unk", "empty_last_reply", "reply_contains_role",
)  # fmt: skip
SLICES = {"first50": (0, 50), "first48": (0, 48), "eval20": (100, 120)}
DROPPED = {"dropped": [2, 3, 9, 20], "dropped_group": [8, 9, 10, 11, 17]}

SAVING = {"save_strategy": "steps", "save_steps": 3}
EVALUATING = {"eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 8}
DECAYING = {
    "weight_decay": 0.1, "adam_beta1": 0.9, "adam_beta2": 0.95, "lr_scheduler_type": "linear",
    "max_grad_norm": 0.5,
}  # fmt: skip
ONCE = {"num_train_epochs": 1}
OF_TWO = {"per_device_train_batch_size": 2, "num_train_epochs": 1, "weight_decay": 0.1}
CONSTANT = {"max_steps": 9, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3}
HALVED = {"per_device_train_batch_size": 2}
RUNS = {
    "a_cosine": Run("model_untied", "first50", 1, {}),
    "b_decay_linear_tail": Run("model_untied", "first50", 1, {**DECAYING, "gradient_accumulation_steps": 4}),
    "c_dropped_micro_batch": Run("model_untied", "dropped", 1, OF_TWO),
    "c_dropped_group": Run("model_untied", "dropped_group", 1, OF_TWO),
    "d_eval": Run("model_untied", "first50", 1, {**EVALUATING, **ONCE}),
    "d_eval_two_processes": Run("model_untied", "first50", 2, {**EVALUATING, **HALVED, **ONCE}),
    "e_max_steps": Run("model_untied", "first50", 1, {"max_steps": 5}),
    "e_max_steps_second_epoch": Run("model_untied", "first50", 1, CONSTANT),
    "f_two_processes": Run("model_untied", "first50", 2, HALVED),
    "f_two_processes_local_average": Run(
        "model_untied", "first50", 2, {**HALVED, "average_tokens_across_devices": False, **ONCE}
    ),
    "g_tied_gqa": Run("model_tied", "first50", 1, {}),
    "g_tied_gqa_decay": Run("model_tied", "first50", 1, {**DECAYING, **ONCE}),
    "h_resume": Run("model_untied", "first48", 1, {**SAVING, **ONCE}),
    "h_resume_tail": Run("model_untied", "first50", 1, {**SAVING, "max_steps": 10}),
    "j_label_smoothing": Run("model_untied", "first50", 1, {"label_smoothing_factor": 0.1, **ONCE}),
    "j_no_clipping": Run("model_untied", "first50", 1, {"max_grad_norm": 0.0, **ONCE}),
}
BASE_RATE, WARMUP, TOTAL = 1e-3, 5, 37
COSINE_ENDS = {"num_decay_steps": 12, "decay_type": "cosine", "warmup_type": "cosine"}
ROOT_ENDS = {"num_decay_steps": 8, "decay_type": "1-sqrt", "warmup_type": "1-sqrt", "min_lr_ratio": 0.05}
# Scheduler, its arguments, warm-up steps, total steps.
SCHEDULES: list[tuple[str, dict[str, Any], int, int]] = [
    ("linear", {}, WARMUP, TOTAL),
    ("cosine", {}, WARMUP, TOTAL),
    ("cosine_with_restarts", {"num_cycles": 3}, WARMUP, TOTAL),
    ("polynomial", {"lr_end": 1e-5, "power": 2.0}, WARMUP, TOTAL),
    ("constant", {}, WARMUP, TOTAL),
    ("constant_with_warmup", {}, WARMUP, TOTAL),
    ("inverse_sqrt", {}, WARMUP, TOTAL),
    ("cosine_with_min_lr", {"min_lr": 1e-4}, WARMUP, TOTAL),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2}, WARMUP, TOTAL),
    ("warmup_stable_decay", {"num_decay_steps": 10, "min_lr_ratio": 0.1}, WARMUP, TOTAL),
    ("cosine", {}, 0, TOTAL),
    ("linear", {}, 0, TOTAL),
    ("cosine", {}, 3, 10),
    ("linear", {}, 3, 10),
    ("polynomial", {}, WARMUP, TOTAL),
    ("cosine_with_restarts", {}, WARMUP, TOTAL),
    ("inverse_sqrt", {}, 0, TOTAL),
    ("cosine_with_min_lr", {"min_lr_rate": 0.25}, WARMUP, TOTAL),
    ("cosine_warmup_with_min_lr", {"min_lr": 2e-4}, WARMUP, TOTAL),
    ("warmup_stable_decay", COSINE_ENDS, WARMUP, TOTAL),
    ("warmup_stable_decay", ROOT_ENDS, WARMUP, TOTAL),
    ("warmup_stable_decay", {"num_decay_steps": 6, "num_stable_steps": 20}, WARMUP, TOTAL),
]


def write_model(name: str, folder: Path) -> None:
    from random_models import write_random

    seed, tokenizer, settings, _ = MODELS[name]
    write_random(folder / name, {**LLAMA, **settings}, seed, GOLDEN / "tokenizers" / tokenizer)


def write_data(folder: Path) -> None:
    """Write slices of dummy_conversation, and rows without labels where epoch 0 visits DROPPED."""
    import torch

    rows = read_records("dummy_conversation")
    cases = {case["id"]: case for case in read_records("edge_cases")}
    for name, (begin, end) in SLICES.items():
        write_json(folder / "data" / f"{name}.json", rows[begin:end])
    for name, positions in DROPPED.items():
        some = rows[50:74]
        order = torch.randperm(len(some), generator=torch.Generator().manual_seed(42)).tolist()
        for number, position in enumerate(positions):
            some[order[position]] = cases[WITHOUT_LABELS[number % len(WITHOUT_LABELS)]]
        write_json(folder / "data" / f"{name}.json", some)


def rates(name: str, arguments: dict[str, Any], warmup: int, total: int) -> list[float]:
    import torch
    from transformers import get_scheduler

    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=BASE_RATE)
    scheduler = get_scheduler(name, optimizer, warmup, total, dict(arguments))
    values = []
    for _ in range(total + 3):
        values.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return values


def write_schedules(path: Path) -> None:
    found = []
    for name, arguments, warmup, total in SCHEDULES:
        case = {"name": name, "kwargs": arguments, "learning_rate": BASE_RATE, "warmup_steps": warmup}
        found.append({**case, "total_steps": total, "rates": rates(name, arguments, warmup, total)})
    write_json(path, json.loads(json.dumps(found)))


def model_part(name: str) -> Part:
    files = ("config.json", "generation_config.json", *MODELS[name][3], *TOKENIZER_FILES)
    return Part(tuple(f"{name}/{file}" for file in files), partial(write_model, name))


RECORDER = Recorder(
    libraries=LIBRARIES,
    parts={
        **{name: model_part(name) for name in MODELS},
        "data": Part(tuple(f"data/{name}.json" for name in (*SLICES, *DROPPED)), write_data),
        **each_file({"schedules.json": write_schedules}),
        **{
            name: Part((f"{name}.json",), lambda to, name=name: record(
                RUNS[name], HERE, HERE / "data", to / f"{name}.json"
            ))
            for name in RUNS
        },
    },
    apart=1e-5,
)  # fmt: skip
