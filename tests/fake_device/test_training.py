"""`python -m fastsft.train` on the fake device has the CPU's curves and saved weights, and resumes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fake_device.running import GOLDEN, FakeDevice, train

FakeDevices = Callable[..., FakeDevice]

FLAGS = {
    "model_name_or_path": "model_tied", "model_max_length": 64, "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2, "max_steps": 4, "learning_rate": 2e-4, "logging_steps": 1,
    "save_steps": 2, "report_to": "none", "seed": 1, "plot_loss": False,
}  # fmt: skip
# Relative errors of the final weights.
WEIGHTS = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}
RUNS: dict[str, tuple[int, dict[str, Any]]] = {
    "alone": (1, {}),
    "bf16 and offload": (1, {"bf16": True, "fsdp": "full_shard offload"}),
    "fp16": (1, {"fp16": True}),
    "lora": (1, {"lora": True, "lora_r": 4, "bf16": True}),
    "full_shard": (2, {"fsdp": "full_shard"}),
    "shard_grad_op": (2, {"fsdp": "shard_grad_op", "bf16": True}),
    "context": (2, {"fsdp": "full_shard", "context_parallel_size": 2, "bf16": True}),
    "q_lora": (1, {"lora": True, "q_lora": True, "lora_r": 4}),
    "generic": (1, {"engine": "generic", "bf16": True}),
    "generic, full_shard": (2, {"engine": "generic", "fsdp": "full_shard"}),
}
QUICK = ("fp16", "lora", "full_shard")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen short conversations."""
    path = tmp_path_factory.mktemp("data") / "short.json"
    turns = [("human", "Question {i}: what is {i} plus {i}?"), ("gpt", "It is {s}." + " Thanks." * 2)]
    records = [
        {
            "id": str(i),
            "conversations": [{"from": who, "value": text.format(i=i, s=2 * i)} for who, text in turns],
        }
        for i in range(16)
    ]
    path.write_text(json.dumps(records))
    return path


def history(output: Path) -> list[dict[str, float]]:
    entries = json.loads((output / "trainer_state.json").read_text())["log_history"]
    return [entry for entry in entries if "loss" in entry]


def weights(output: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(output.glob("*.safetensors")):
        found |= load_file(path)
    assert found
    return found


def run(device: FakeDevice | None, output: Path, flags: dict[str, Any], ranks: int) -> None:
    done = train(device, output, flags, ranks)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    assert "Exception ignored" not in done.stderr and "terminate called" not in done.stderr
    if device:
        assert "cuda:0" in done.stdout
        device.check()


def assert_equal_runs(ours: Path, expected: Path, precision: str) -> None:
    loss = {"fp32": 1e-5, "bf16": 5e-3, "fp16": 5e-3}[precision]
    norm = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 5e-2}[precision]
    for mine, theirs in zip(history(ours), history(expected), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=loss)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=norm)
    got, wanted = weights(ours), weights(expected)
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        difference = (got[name].float() - tensor.float()).norm() / tensor.float().norm().clamp(min=1e-6)
        assert difference.item() <= WEIGHTS[precision], name


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.chaos) for name in RUNS]
)
def test_runs(name: str, data: Path, fake_device: FakeDevices, tmp_path: Path) -> None:
    ranks, more = RUNS[name]
    flags = {**FLAGS, "data_path": data, **more}
    precision = next((kind for kind in ("bf16", "fp16") if more.get(kind)), "fp32")
    run(None, tmp_path / "cpu", flags, ranks)
    device = fake_device(schedule="mixed", seed=3, races=ranks > 1, devices=ranks)
    run(device, tmp_path / "fake", flags, ranks)
    assert_equal_runs(tmp_path / "fake", tmp_path / "cpu", precision)


def test_resume(data: Path, fake_device: FakeDevices, tmp_path: Path) -> None:
    """A run that stopped after two of four steps continues to the bits of the whole run, with its offload."""
    flags = {**FLAGS, **RUNS["bf16 and offload"][1], "data_path": data, "lr_scheduler_type": "constant"}
    device = fake_device(schedule="lazy")
    run(device, tmp_path / "whole", flags, 1)
    run(device, tmp_path / "parts", {**flags, "max_steps": 2}, 1)
    run(device, tmp_path / "parts", flags, 1)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(tensor.equal(parts[name]) for name, tensor in whole.items())


@pytest.mark.chaos
def test_the_generic_engine_attends_in_one_call_per_layer(
    data: Path, fake_device: FakeDevices, tmp_path: Path
) -> None:
    """Whatever the number of conversations in a micro-batch; and the host waits for results alone."""
    counts = []
    for steps in (2, 4):
        device = fake_device(counts=True)
        flags = {**FLAGS, **RUNS["generic"][1], "max_steps": steps, "save_strategy": "no", "data_path": data}
        run(device, tmp_path / str(steps), flags, 1)
        counts.append(device.count())
    few, many = counts

    def more(name: str) -> int:
        return sum(c.calls if name in key else 0 for key, c in many.items()) - sum(
            c.calls if name in key else 0 for key, c in few.items()
        )

    layers = json.loads((GOLDEN / "model_tied" / "config.json").read_text())["num_hidden_layers"]
    passes = 2 * layers  # two steps, whose conversations fit into one micro-batch
    assert more("operation flash attention") == 2 * passes and more("aten::_softmax") == 0
    assert more("cudaStreamSynchronize") == more(" (waits)") == 0
