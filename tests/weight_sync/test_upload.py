"""fsdp_upload_state_dict: rank 0 sends, all ranks take part, and all raise what one meets."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from fastsft.weight_sync import Synchronizer, SyncPlan, fsdp_upload_state_dict
from fastsft.weight_sync.upload import unpacked
from ranks import run_ranks
from weight_sync_parts.modules import make_engine, make_model, state_of_model, wrap
from weight_sync_parts.receivers import join, start
from weight_sync_parts.save_world import KINDS, LOGGER

CASES = [f"{kind}-{tied}" for kind in KINDS for tied in (False, True)]


@pytest.fixture(scope="module")
def uploads() -> list[dict[str, Any]]:
    """What each of two ranks saw, by case."""
    return run_ranks(2, everything)


def same(received: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert received.keys() == expected.keys()
    for name, tensor in expected.items():
        assert received[name].dtype == tensor.dtype and torch.equal(received[name], tensor), name


@pytest.mark.parametrize("case", CASES)
def test_the_synchronizer_has_the_models_weights(uploads: Any, case: str) -> None:
    first, second = (rank[case] for rank in uploads)
    expected = first["expected"]
    if case.endswith("True"):
        del expected["head.weight"]
    ((state_dict, step),) = first["plain"]
    assert step == 1
    same(state_dict, expected)
    packed, version = first["packed"]
    assert version == 2
    same(packed, expected)
    assert first["meta"] == [(name, str(t.dtype), tuple(t.shape)) for name, t in packed.items()]
    assert list(packed) == list(state_dict)
    assert first["tied"] == ({"head.weight": "embed.weight"} if case.endswith("True") else {})
    assert (second["plain"], second["packed"]) == ([], (None, 0))


def test_all_ranks_raise_what_rank_0_met() -> None:
    for refused, sent, old, apart, calls in run_ranks(2, faults):
        assert refused == "RuntimeError: uploading step 3: rank 0 failed: OSError: actor died"
        assert sent == "sent"
        assert old == "ValueError: uploading step 3: version 3 is not newer than 3, which receivers have"
        assert "head.weight and embed.weight are tied by config.json but hold different values" in apart
        assert calls == "0 calls"


def test_narrow_uploads_keep_buffers() -> None:
    model, synchronizer = make_model(False), Synchronizer()
    fsdp_upload_state_dict(make_engine(model, "plain"), synchronizer, 4, LOGGER, save_dtype="bfloat16")
    received, _ = synchronizer.get_model_state_dict()
    assert received is not None
    parameters = dict(model.named_parameters())
    same(received, {n: t.bfloat16() if n in parameters else t for n, t in state_of_model(model).items()})


def test_views_of_packed_weights_share_memory_where_they_are_aligned() -> None:
    plan = SyncPlan(
        [("a", "bfloat16", [3]), ("b", "float32", [2]), ("c", "float32", [0]), ("d", "uint8", [2])]
    )
    data = np.arange(16, dtype=np.uint8)
    state = unpacked(plan, 1024, [data])
    assert list(state) == ["a", "b", "c", "d"]
    assert state["b"].view(torch.uint8).tolist() == list(range(6, 14))
    data[0] = 255
    assert state["a"].view(torch.uint8)[0] == 255
    with pytest.raises(ValueError, match=r"expected arrays of \[16\] bytes, got \[15\]"):
        unpacked(plan, 1024, [data[:15]])


def test_a_reader_waits_for_a_newer_version() -> None:
    synchronizer = Synchronizer()
    assert synchronizer.get_state_dict_meta() is None
    assert synchronizer.wait_new_model_state_dict(0, timeout=0.01) == 0
    versions: list[int] = []
    reader = start("reader", lambda: versions.append(synchronizer.wait_new_model_state_dict(0, 30)))
    synchronizer.set_model_state_dict({"w": torch.ones(2)}, 5)
    join([reader])
    assert versions == [5]
    with pytest.raises(ValueError, match="version 5 is not newer than 5"):
        synchronizer.set_model_state_dict({"w": torch.ones(2)}, 5)


class Silent:
    """An actor that takes the weights and never answers."""

    async def set_model_state_dict(self, *_: Any) -> None:
        await asyncio.sleep(3600)


def test_a_synchronizer_that_never_answers_is_an_error() -> None:
    engine = make_engine(make_model(False), "plain")
    with pytest.raises(RuntimeError, match=r"set_model_state_dict: no answer within 0\.1 seconds"):
        fsdp_upload_state_dict(engine, Silent(), 1, LOGGER, deadline_s=0.1)


class Slow:
    """A synchronizer of this process whose answer does not come."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def set_model_state_dict(self, state_dict: Any, step: int) -> None:
        self.go_on.wait(60.0)


class SlowCoroutine(Slow):
    async def set_model_state_dict(self, state_dict: Any, step: int) -> None:
        self.go_on.wait(60.0)  # and keeps its loop


class SlowPacked(Slow):
    def set_packed_model_state_dict(self, *_: Any) -> None:
        self.go_on.wait(60.0)


@pytest.mark.parametrize("kind", [Slow, SlowCoroutine, SlowPacked])
def test_a_synchronizer_that_hangs_is_given_up_at_the_deadline(kind: Any) -> None:
    synchronizer, engine = kind(), make_engine(make_model(False), "plain")
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"set_(packed_)?model_state_dict: no answer within 0\.3 seconds"):
        fsdp_upload_state_dict(engine, synchronizer, 1, LOGGER, deadline_s=0.3)
    assert time.monotonic() - began < 30.0
    synchronizer.go_on.set()
    fsdp_upload_state_dict(engine, synchronizer, 1, LOGGER, deadline_s=30.0)  # nothing is held


def test_a_synchronizer_runs_under_the_callers_settings() -> None:
    """Gradients off, and what contextvars say, as on the caller's own thread."""
    seen: list[Any] = []
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="")

    class Notes:
        def set_model_state_dict(self, state_dict: Any, step: int) -> None:
            seen.append((torch.is_grad_enabled(), name.get()))
            raise TimeoutError("its own")

    name.set("rollout")
    with torch.no_grad(), pytest.raises(RuntimeError, match="TimeoutError: its own"):
        fsdp_upload_state_dict(make_engine(make_model(False), "plain"), Notes(), 1, LOGGER, deadline_s=30.0)
    assert seen == [(False, "rollout")]


class PlainSynchronizer:
    """Trinity's: takes a real dict, and checks nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, int]] = []

    def set_model_state_dict(self, state_dict: Any, trainer_step: int) -> None:
        self.calls.append((state_dict, trainer_step))


def everything(_: Any) -> dict[str, Any]:
    """Every wrapper, tied or not, to both kinds of synchronizer."""
    outcome: dict[str, Any] = {}
    for kind in KINDS:
        for tied in (False, True):
            model = make_model(tied)
            expected = state_of_model(model)
            engine = make_engine(wrap(model, kind), kind)
            plain, ours = PlainSynchronizer(), Synchronizer()
            fsdp_upload_state_dict(engine, plain, 0, LOGGER)
            fsdp_upload_state_dict(engine, plain, 1, LOGGER)
            fsdp_upload_state_dict(engine, ours, 2, LOGGER, bucket_bytes=128)
            outcome[f"{kind}-{tied}"] = {
                "expected": expected,
                "plain": plain.calls,
                "packed": ours.get_model_state_dict(),
                "meta": ours.get_state_dict_meta(),
                "tied": ours.get_tied_names(),
            }
    return outcome


def faults(_: Any) -> list[str]:
    """What every rank hears when rank 0's call fails, when tied tensors differ, and of old versions."""
    heard = []

    class Refusing:
        def set_model_state_dict(self, *_: Any) -> None:
            raise OSError("actor died")

    def attempt(engine: Any, synchronizer: Any, step: int) -> None:
        try:
            fsdp_upload_state_dict(engine, synchronizer, step, LOGGER)
            heard.append("sent")
        except (RuntimeError, ValueError) as error:
            heard.append(f"{type(error).__name__}: {error}")

    engine = make_engine(wrap(make_model(False), "fsdp2"), "fsdp2")
    attempt(engine, Refusing(), 3)
    attempt(engine, PlainSynchronizer(), 3)
    attempt(engine, PlainSynchronizer(), 3)
    apart = make_engine(wrap(make_model(True, apart=True), "fsdp1"), "fsdp1")
    plain = PlainSynchronizer()
    attempt(apart, plain, 1)
    heard.append(f"{len(plain.calls)} calls")
    dist.barrier()
    return heard
