"""FastsftEngine: the three functions on our own model, and what veRL's workers call on an engine."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastsft import _C
from fastsft.weight_sync import (
    CheckpointCoordinator,
    FastsftEngine,
    Synchronizer,
    fsdp_save_state_dict,
    fsdp_sync_weight_nccl,
    fsdp_upload_state_dict,
    read_state_dict,
    sync_plan,
)
from ranks import run_ranks
from saving_run import make_trainer
from tiny_models import make_engine, train, weights_of, write_model
from weight_sync_parts.modules import Tokens
from weight_sync_parts.receivers import sync
from weight_sync_parts.save_world import FORMATS, LOGGER

WORLDS = [
    (1, "no_shard", "float32", "untied"),
    (2, "full_shard", "bfloat16", "tied"),
    (3, "full_shard", "float32", "qwen3"),
    (1, "no_shard", "bfloat16", "phi3"),
]


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: "-".join(map(str, world)))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """(folder, what rank 0 saw)."""
    ranks, strategy, compute, kind = request.param
    folder = tmp_path_factory.mktemp("native")
    write_model(folder / "model", kind)
    seen = run_ranks(ranks, everything, str(folder / "model"), str(folder), strategy, compute)
    return folder, seen[0]


def same(received: dict[str, torch.Tensor], masters: dict[str, torch.Tensor], narrow: bool) -> None:
    assert received.keys() == masters.keys()
    for name, master in masters.items():
        if not narrow:
            assert torch.equal(received[name], master), name
            continue
        # The engine rounds ties away from zero, torch to even: one step apart at most, and rarely.
        assert received[name].dtype == torch.bfloat16
        steps = received[name].view(torch.int16).int() - master.bfloat16().view(torch.int16).int()
        assert steps.abs().max() <= 1 and (steps != 0).float().mean() < 0.01


@pytest.mark.parametrize("save_format", FORMATS)
def test_saved_weights_are_those_of_the_call(world: tuple[Path, Any], save_format: str) -> None:
    folder, seen = world
    same(read_state_dict(folder / save_format, checksums=True), seen["saved"][save_format], seen["narrow"])


def test_uploaded_and_broadcast_weights_are_the_models(world: tuple[Path, Any]) -> None:
    _, seen = world
    uploaded, version = seen["uploaded"]
    assert version == 3
    same(uploaded, seen["masters"], seen["narrow"])
    sent, loaded = seen["loaded"]
    assert (sent, seen["extra"]) == (1, None)
    for received in [*loaded, seen["per tensor"]]:
        assert all(torch.equal(received[name], tensor) for name, tensor in uploaded.items())
        assert received.keys() == uploaded.keys()


def test_transformers_loads_a_save(world: tuple[Path, Any], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder, _ = world
    for path in [*(folder / "hf" / "huggingface").iterdir(), folder / "hf" / "model.safetensors"]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    state = model.state_dict()
    saved = weights_of(tmp_path)
    assert all(torch.equal(state[name].to(tensor.dtype), tensor) for name, tensor in saved.items())
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 70


def test_masters_go_out_when_asked_for(tmp_path: Path) -> None:
    from tiny_models import make_engine

    native = make_engine(write_model(tmp_path / "model", "untied"), compute_dtype="bfloat16")
    trainer = SimpleNamespace(model=SimpleNamespace(engine=native))
    named, _ = FastsftEngine(trainer, send_master=True).get_per_tensor_param()
    masters = native.named_parameters()
    assert all(torch.equal(tensor, masters[name]) for name, tensor in named)


def test_checkpoints_of_the_trainer(tmp_path: Path) -> None:
    trainer = make_trainer(write_model(tmp_path / "model", "untied"), tmp_path / "out")
    engine = FastsftEngine(trainer)
    assert engine.module is trainer.model
    assert engine._strategy == "fastsft"
    engine.save_checkpoint(str(tmp_path / "out" / "checkpoint-0"), global_step=0)
    before = trainer.engine.named_parameters()
    trainer.engine.set_parameter("lm_head.weight", torch.zeros_like(before["lm_head.weight"]))
    trainer.engine.publish()
    engine.load_checkpoint(str(tmp_path / "out" / "checkpoint-0"))
    after = trainer.engine.named_parameters()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
    with pytest.raises(ValueError, match="hdfs_path"):
        engine.save_checkpoint(str(tmp_path / "x"), "hdfs://x")


def test_an_engine_before_its_model_is_built() -> None:
    with pytest.raises(ValueError, match="has no engine yet"):
        _ = FastsftEngine(SimpleNamespace(model=SimpleNamespace(engine=None))).native_engine


def test_an_engine_with_adapters_is_refused(tmp_path: Path) -> None:
    from tiny_models import make_engine

    linear = _C.AdapterLinear("model.layers.0.self_attn.q_proj", rank=2, scale=1.0)
    model = write_model(tmp_path / "model", "untied")
    native = make_engine(model, adapters=_C.AdapterOptions(linears=[linear]))
    trainer = SimpleNamespace(model=SimpleNamespace(engine=native))
    with pytest.raises(ValueError, match="model with adapters are not sent; save the adapter, or merge it"):
        FastsftEngine(trainer).get_per_tensor_param()


def everything(
    groups: dict[str, str], model: str, folder: str, strategy: str, compute: str
) -> dict[str, Any]:
    """Two steps of training, then save, upload and broadcast, each beside a further step where it may be."""
    native = make_engine(
        Path(model), strategy=strategy, compute_dtype=compute,
        gather_group=groups["gather_group"], reduce_group=groups["reduce_group"],
    )  # fmt: skip
    engine = FastsftEngine(SimpleNamespace(model=SimpleNamespace(engine=native), tokenizer=Tokens()))
    coordinator, synchronizer, saved = CheckpointCoordinator(), Synchronizer(), {}
    train(native, 2)
    for name in FORMATS:
        saved[name] = native.named_parameters()
        fsdp_save_state_dict(engine, str(Path(folder, name)), 2, coordinator, LOGGER, format=name)
        train(native, 1)
    coordinator.wait_all()
    masters = native.named_parameters()
    fsdp_upload_state_dict(engine, synchronizer, 3, LOGGER, bucket_bytes=1 << 14)
    plan = sync_plan(engine)
    loaded: Any = None
    if native.rank == 0:
        version, ends = sync(
            lambda group: fsdp_sync_weight_nccl(engine, group, mode="native", bucket_bytes=1 << 12),
            plan, mode="native", bucket_bytes=1 << 12, deadline_s=60.0,
        )  # fmt: skip
        loaded = (version, [dict(end.tensors) for _, _, end in ends])
    else:
        fsdp_sync_weight_nccl(engine, None, mode="native", bucket_bytes=1 << 12)
    named, extra = engine.get_per_tensor_param()
    return {
        "saved": saved, "masters": masters, "uploaded": synchronizer.get_model_state_dict(), "loaded": loaded,
        "per tensor": {name: tensor.clone() for name, tensor in named}, "extra": extra,
        "narrow": _C.compute_dtype(native) != "float32",
    }  # fmt: skip
