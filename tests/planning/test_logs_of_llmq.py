"""The prediction of speed next to logs of LLMQ (IST-DASLab/llmq, benchmarks/H100x1.md and H100x8.md).

Commits 7f895bd and 2251720: Qwen2.5 in bfloat16 with bfloat16 moments, rows of 1,024 tokens, 524,288 tokens a
step, attention by cuDNN, nothing computed again; on eight GPUs optimizer states are divided.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastsft.planning.gpus import gpu_named
from fastsft.planning.memory_plan import BatchShape, EngineSettings, plan_memory
from fastsft.planning.time_model import predict

CONFIGS = Path(__file__).parents[2] / "benchmarks" / "configs"
H100 = gpu_named("NVIDIA H100 80GB HBM3")
ROW, STEP = 1024, 524_288
THREE = {
    "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
    "num_key_value_heads": 2,
}  # fmt: skip
# GPUs, rows a micro-batch, and the median tokens/s of steps 1 to 5 of the log.
LOGS = {
    "0.5b": [(1, 32, 149_500), (8, 32, 1_175_000)],
    "1.5b": [(1, 32, 59_250), (8, 32, 457_000)],
    "3b": [(1, 16, 30_900), (8, 16, 239_500)],
    "7b": [(1, 4, 13_818), (8, 8, 112_000)],
}


def config_of(size: str) -> str:
    if size != "3b":
        return (CONFIGS / f"qwen2.5-{size}.json").read_text()
    return json.dumps(json.loads((CONFIGS / "qwen2.5-1.5b.json").read_text()) | THREE)


@pytest.mark.parametrize(
    ("size", "gpus", "rows", "measured"), [(size, *log) for size, logs in LOGS.items() for log in logs]
)
def test_within_five_percent(size: str, gpus: int, rows: int, measured: float) -> None:
    setting = EngineSettings(
        config_of(size), world_size=gpus, device="cuda", gpu=H100, attention_kernel="cudnn"
    ).with_state(
        compute_dtype="bfloat16", grad_dtype="bfloat16", optim_dtype="bfloat16", master_dtype="split",
        strategy="shard_grad_op" if gpus > 1 else "full_shard", sync_each_batch=False,
    )  # fmt: skip
    work = BatchShape.full(rows * ROW, ROW, STEP // gpus // (rows * ROW))
    assert H100 is not None
    found = predict(plan_memory(setting, "none", rows * ROW, work), H100)
    assert found.tokens_per_second == pytest.approx(measured, rel=0.05)
