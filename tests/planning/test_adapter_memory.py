"""Memory of adapters on a frozen model: by the formula of docs/memory.md, planned as allocated, chosen."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from adapted_models import AdaptedModel
from engines import new_engine, planned_bytes
from fastsft import _C
from fastsft.planning.memory_plan import BatchShape, EngineSettings, plan_memory
from fastsft.planning.plan_choice import choose_plan
from fastsft.planning.plan_request import MemoryBudget, PlanRequest
from memory_run import MODELS
from peft_pairs import CASES, adapted_model, random_peft

LAYERS = MODELS["untied"]["num_hidden_layers"]
LINEARS = ["self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"]
CONFIG = json.dumps(MODELS["untied"])
SIZES: dict[str, Any] = {"micro_batch": (96, 40, 64), "step": (192, 80, 2)}


def adapters(layers: range = range(LAYERS), rank: int = 4) -> _C.AdapterOptions:
    modules = [f"model.layers.{layer}.{name}" for layer in layers for name in LINEARS]
    return _C.AdapterOptions(linears=[_C.AdapterLinear(each, rank=rank, scale=2.0) for each in modules])


FORMULA = {  # bytes a parameter: frozen and trained, gradient, master and moments
    ("float32", "float32"): (4, 4, 8),
    ("bfloat16", "float32"): (2, 4, 4 + 8),
    ("bfloat16", "split"): (2, 4, 2 + 8),
}


@pytest.mark.parametrize(("compute", "master"), FORMULA)
def test_a_frozen_model_has_neither_gradients_nor_moments(compute: str, master: str) -> None:
    weight, gradient, state = FORMULA[compute, master]
    options = {"adapters": adapters(), "compute_dtype": compute, "master_dtype": master}
    engine = new_engine(CONFIG, **options)
    trained, total = engine.num_trained_parameters, engine.num_parameters
    assert 0 < trained < 0.05 * total
    expected = {"parameters": weight * total, "gradients": gradient * trained, "optimizer": state * trained}
    held, planned = engine.memory(), planned_bytes(CONFIG, **options, **SIZES).parts
    for name, size in expected.items():
        assert size <= held[name] <= 1.05 * size, name
        assert planned[name] == held[name], name


@pytest.mark.parametrize("first", [0, 3, LAYERS - 1])
@pytest.mark.parametrize("recompute", _C.recompute_policies())
def test_layers_below_the_first_adapter_keep_nothing(recompute: str, first: int) -> None:
    options = {"adapters": adapters(range(first, LAYERS)), "recompute": recompute}
    engine = new_engine(CONFIG, **options)
    engine.reserve(**SIZES)
    threads = torch.get_num_threads()
    parts = planned_bytes(CONFIG, **options, **SIZES, threads=threads).parts
    kept = ("activations", "labelled tokens", "logits", "products and sums")
    assert engine.memory()["activations"] == sum(parts[name] for name in kept)
    options["adapters"] = adapters()
    whole = planned_bytes(CONFIG, **options, **SIZES, threads=threads).parts["activations"]
    share = parts["activations"] / whole
    assert share == 1 if first == 0 else share < 1 - (0 if recompute == "block" else 0.4) * first / LAYERS


@pytest.mark.parametrize("recompute", _C.recompute_policies())
def test_gradients_of_upper_layers_are_the_same(recompute: str) -> None:
    """With a ring of buffers below the first adapter and without one: all layers, and the last one alone."""
    subject = adapted_model(random_peft(CASES["llama, all linears, rsLoRA, ranks that differ"]))
    last = max(int(name.split(".")[2]) for name, _, _ in subject.linears)
    assert last > 0
    kept = [each for each in subject.linears if f"layers.{last}." in each[0]]
    # The adapters of the lower layers do nothing: their B's are zero.
    dropped = {name for name, _, _ in subject.linears} - {name for name, _, _ in kept}
    still = {
        name: torch.zeros_like(value) if name.removesuffix(".lora_B.weight") in dropped else value
        for name, value in subject.parameters.items()
    }
    whole = replace(subject, parameters=still)
    names = tuple(f"{module}.lora_" for module in dropped)
    fewer = {name: value for name, value in still.items() if not name.startswith(names)}
    upper: AdaptedModel = replace(subject, linears=kept, parameters=fewer)
    loss, expected = whole.gradients(whole.engine())
    found_loss, found = upper.gradients(upper.engine(recompute=recompute))
    assert found_loss == pytest.approx(loss, rel=1e-6) and found
    for name, value in found.items():
        assert np.allclose(value, expected[name], rtol=1e-4, atol=1e-7), name


def test_one_unit_is_planned_alike_each_time() -> None:
    """Adapters on one layer: no other unit is trained."""
    options = {"adapters": adapters(range(LAYERS - 1, LAYERS)), "world_size": 2}
    for strategy in ("full_shard", "shard_grad_op"):
        plans = [planned_bytes(CONFIG, **options, **SIZES, strategy=strategy).parts for _ in range(20)]
        assert all(plan == plans[0] for plan in plans)
        assert 0 < plans[0]["collectives"] < plans[0]["parameters"]


@pytest.mark.parametrize("recompute", ["none", "selective", "gate_up"])
def test_activations_up_to_a_quarter_of_the_room_are_kept(recompute: str) -> None:
    """What adapters hold is small whatever the model, so their state is no measure."""
    work, setting = BatchShape.full(1024, 64), EngineSettings(CONFIG, adapters=adapters())
    held = plan_memory(setting, recompute, 1024, work)
    assert held.parts["activations"] > 3 * held.state / 4
    room = MemoryBudget(4 * held.parts["activations"])
    assert choose_plan(setting, PlanRequest(token_budget=1024), lambda _: work, room).recompute == recompute
    plenty = choose_plan(setting, PlanRequest(token_budget=1024), lambda _: work, MemoryBudget(20 << 30))
    assert plenty.recompute == "none"
