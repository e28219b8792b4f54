"""Arguments and dtypes that nobody expects: taken as they are meant, or refused before anything begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from fastsft.weight_sync import (
    CheckpointCoordinator,
    FastsftEngine,
    Synchronizer,
    WeightReceiver,
    fsdp_save_state_dict,
    fsdp_sync_weight_nccl,
    fsdp_upload_state_dict,
    sync_plan,
)
from fastsft.weight_sync.agreement import TransferAgreement
from weight_sync_parts.modules import make_engine, make_model
from weight_sync_parts.receivers import Loaded, in_threads, make_groups
from weight_sync_parts.save_world import LOGGER

LIMIT_S = 30.0


@pytest.fixture
def engine() -> Any:
    return make_engine(make_model(False), "plain", per_tensor=False)


@pytest.mark.parametrize("deadline", [0, -1.0, float("inf"), float("nan"), None, "5"])
def test_a_deadline_that_is_none_is_refused(engine: Any, tmp_path: Path, deadline: Any) -> None:
    options: dict[str, Any] = {"deadline_s": deadline}
    (group,) = make_groups(1)
    with pytest.raises(ValueError, match="deadline_s: expected seconds, more than 0"):
        fsdp_save_state_dict(engine, str(tmp_path / "x"), 1, CheckpointCoordinator(), LOGGER, **options)
    with pytest.raises(ValueError, match="deadline_s: expected seconds, more than 0"):
        fsdp_upload_state_dict(engine, Synchronizer(), 1, LOGGER, **options)
    with pytest.raises(ValueError, match="deadline_s: expected seconds, more than 0"):
        fsdp_sync_weight_nccl(engine, group, **options)
    with pytest.raises(ValueError, match="deadline_s: expected seconds, more than 0"):
        WeightReceiver(group, sync_plan(engine), Loaded(), **options)
    assert not list(tmp_path.iterdir())


def test_objects_of_other_kinds_are_named(engine: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"FastsftEngine: expected a fastsft\.Trainer, got 'model'"):
        FastsftEngine("model")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="engine: expected an object with the attribute module, got <object"):
        fsdp_save_state_dict(object(), str(tmp_path / "a"), 1, CheckpointCoordinator(), LOGGER)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="local_path: expected the path of a directory, got 5"):
        fsdp_save_state_dict(engine, 5, 1, CheckpointCoordinator(), LOGGER)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=r"local_path: .*choose another, which is no file"):
        fsdp_save_state_dict(engine, str(tmp_path / "file" / "a"), 1, CheckpointCoordinator(), LOGGER)


@pytest.mark.parametrize("size", [-1, 1.5, "64"])
def test_a_bucket_that_is_no_size_is_refused(engine: Any, size: Any) -> None:
    (group,) = make_groups(1)
    with pytest.raises(ValueError, match="bucket_bytes: expected a whole number"):
        fsdp_upload_state_dict(engine, Synchronizer(), 1, LOGGER, bucket_bytes=size)
    with pytest.raises(ValueError, match="bucket_bytes: expected a whole number"):
        fsdp_sync_weight_nccl(engine, group, bucket_bytes=size)
    with pytest.raises(ValueError, match="bucket_bytes: expected a whole number"):
        WeightReceiver(group, sync_plan(engine), Loaded(), bucket_bytes=size)


def test_numbers_may_be_numpys(engine: Any) -> None:
    groups = make_groups(2)
    options: dict[str, Any] = {
        "mode": "native", "bucket_bytes": numpy.int64(64), "deadline_s": numpy.float64(LIMIT_S)
    }  # fmt: skip
    receiver = WeightReceiver(groups[1], sync_plan(engine), Loaded(), **options)
    send = lambda: fsdp_sync_weight_nccl(engine, groups[0], version=numpy.int32(4), **options)  # noqa: E731
    assert in_threads([send, receiver.receive], LIMIT_S) == [4, 4]


def test_the_version_after_a_late_failure_is_one_that_no_receiver_has(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receivers had loaded version 1 when a trainer rank failed, and would refuse it for ever."""
    groups = make_groups(2)
    options: dict[str, Any] = {"mode": "native", "deadline_s": LIMIT_S}
    receiver = WeightReceiver(groups[1], sync_plan(engine), Loaded(), **options)
    works = [lambda: fsdp_sync_weight_nccl(engine, groups[0], **options), receiver.receive]
    settle = TransferAgreement.settle
    with monkeypatch.context() as patch:
        patch.setattr(
            TransferAgreement, "settle", lambda self, what, _: settle(self, what, OSError("too late"))
        )
        first, second = in_threads(works, LIMIT_S)
    assert "too late" in str(first) and second == 1
    assert in_threads(works, LIMIT_S) == [2, 2]


@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_tied_tensors_are_compared_by_their_bits(value: float) -> None:
    model = make_model(True, apart=True)
    for weight in (model.embed.weight, model.head.weight):
        nn.init.constant_(weight, value)
    synchronizer = Synchronizer()
    fsdp_upload_state_dict(make_engine(model, "plain"), synchronizer, 1, LOGGER)
    assert synchronizer.get_tied_names() == {"head.weight": "embed.weight"}
    with torch.no_grad():
        model.head.weight[0, 0] = 2.0
    with pytest.raises(ValueError, match="hold different values"):
        fsdp_upload_state_dict(make_engine(model, "plain"), synchronizer, 2, LOGGER)


@pytest.mark.parametrize("mode", ["trinity", "vllm_packed", "sglang", "native"])
@pytest.mark.parametrize("dtype", ["int16", "uint16", "float8_e4m3fn", "float8_e5m2", "bool", "float64"])
def test_dtypes_that_gloo_does_not_know_arrive(mode: str, dtype: str) -> None:
    module = nn.Module()
    values = torch.arange(6.0).reshape(2, 3).to(getattr(torch, dtype))
    module.register_buffer("whole", values)
    module.register_buffer("one", values[1, 1].clone())
    module.register_buffer("turned", values.t())
    engine = make_engine(module, "plain", per_tensor=False)
    groups, loaded = make_groups(2), Loaded()
    options: dict[str, Any] = {"mode": mode, "deadline_s": LIMIT_S}
    receiver = WeightReceiver(groups[1], sync_plan(engine, send_buffers=True), loaded, **options)
    send = lambda: fsdp_sync_weight_nccl(engine, groups[0], send_buffers=True, **options)  # noqa: E731
    assert in_threads([send, receiver.receive], LIMIT_S) == [1, 1]
    for name, tensor in loaded.tensors:
        expected = module.state_dict()[name]
        assert tensor.dtype == expected.dtype and tensor.shape == expected.shape
        assert torch.equal(tensor.double(), expected.double())
