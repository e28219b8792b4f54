"""A frozen model in 4 bits: peft on the values of the bits judges gradients, one rank the others."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from adapted_models import AdaptedModel
from engines import new_engine, train_step
from fastsft import _C
from ops.test_nf4 import RECORDED, quantized
from peft_pairs import CASES, EXPERTS, LINEAR, Case, PeftPair, adapted_model, engine_name, random_peft
from ranks import run_ranks
from tolerances import assert_close

# Blocks of 64 fill each linear; 6 of them are no group of scales, and 100 rows of `up_proj` are 1.5.
SIZES = {"hidden_size": 32, "intermediate_size": 100, "head_dim": 12}
CASE: Case = ({"model_type": "qwen2", **SIZES}, {"target_modules": LINEAR, "use_rslora": True})
TIED: Case = (
    {"model_type": "llama", "tie_word_embeddings": True, **SIZES},
    {"target_modules": ["v_proj", "up_proj"]},
)
MIXTURE: Case = (
    {"model_type": "qwen3_moe", **EXPERTS, "num_experts": 4, "moe_intermediate_size": 20, **SIZES},
    {"target_modules": ["q_proj", "o_proj"]},
)
STRATEGIES = list(_C.strategies())
NF4: dict[str, Any] = {"frozen_dtype": "nf4"}


def in_bits(values: Tensor) -> Tensor:
    """What 4 bits make of values."""
    packed, scales = quantized(values.flatten())
    out = torch.empty_like(values).flatten()
    torch.ops.fastsft.nf4_dequantize(packed, scales, RECORDED["levels"], out)
    return out.view(values.shape)


def is_packed(name: str) -> bool:
    return name.startswith("model.layers.") and name.endswith(("_proj.weight", ".gate.weight"))


def pair_in_bits(case: Case) -> PeftPair:
    """peft's base model has the values of the engine's bits."""
    pair = PeftPair(case, **NF4)
    given = {name: value.clone() for name, value in pair.subject.parameters.items()}
    pair.subject = replace(pair.subject, parameters=given)
    held = pair.engine.named_parameters()
    with torch.no_grad():
        for name, value in pair.model.named_parameters():
            value.copy_(held[engine_name(name)])
    return pair


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", [CASE, TIED, MIXTURE], ids=["untied", "tied", "mixture"])
def test_linears_of_layers_are_in_bits_and_nothing_else(case: Case, dtype: str) -> None:
    subject = adapted_model(random_peft(case))
    engine = subject.engine(compute_dtype=dtype, **NF4)
    trained = set(engine.trained_shapes)
    for name, value in engine.named_parameters().items():
        given = subject.parameters[name]
        rounded = given if dtype == "float32" or name in trained else given.bfloat16()
        expected = in_bits(rounded) if is_packed(name) else rounded
        assert torch.equal(value, expected.float()), name


def test_values_may_be_given_again() -> None:
    subject = adapted_model(random_peft(CASE))
    engine, name = subject.engine(**NF4), "model.layers.1.mlp.down_proj.weight"
    before = engine.named_parameters()
    new = torch.randn_like(subject.parameters[name])
    engine.set_parameter(name, new)
    engine.publish()
    after = engine.named_parameters()
    assert torch.equal(after.pop(name), in_bits(new)) and not torch.equal(before.pop(name), in_bits(new))
    assert all(torch.equal(value, before[other]) for other, value in after.items())


@pytest.mark.parametrize("case", [CASE, TIED, MIXTURE], ids=["untied", "tied", "mixture"])
@pytest.mark.parametrize("recompute", _C.recompute_policies())
def test_loss_and_gradients_are_those_of_peft(case: Case, recompute: str) -> None:
    pair = pair_in_bits(case)
    expected_loss, expected = pair.expected()
    engine = pair.subject.engine(recompute=recompute, **NF4)
    loss, gradients = pair.subject.gradients(engine)
    assert loss == pytest.approx(expected_loss, abs=1e-5)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(gradients[name], gradient, "model", name)
    plain, _ = pair.subject.gradients(pair.subject.engine())
    assert abs(plain - loss) > 1e-3  # bits do change it


def steps(groups: dict[str, str], subject: AdaptedModel, options: dict[str, Any]) -> dict[str, Any]:
    """Two steps under every strategy: losses and what is held afterwards."""
    results = {}
    for strategy in STRATEGIES:
        engine = subject.engine(strategy=strategy, **NF4, **options, **groups)
        mine = list(range(6))[engine.rank :: engine.world_size]
        losses = []
        for step in range(2):
            result = train_step(
                engine, subject.dataset(), [mine], [subject.weights[mine]],
                learning_rate=1e-2, eps=1e-3, weight_decay=0.1, dropout_seed=step,
            )  # fmt: skip
            losses += [result.loss, result.grad_norm]
        results[strategy] = {
            "losses": losses,
            "trained": engine.trained_parameters(),
            "all": engine.named_parameters(),
            "digests": {each.unit: each.parameters for each in engine.state_digests()},
        }
    return results


@pytest.mark.variants("3-options1", "2-options3")
@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, {}), (3, {}), (2, {"offload": True, "adapter_dropout": 0.2}),
        (2, {"compute_dtype": "bfloat16", "master_dtype": "split"}),
    ],
)  # fmt: skip
def test_ranks_hold_the_same_bits_and_train_alike(ranks: int, options: dict[str, Any]) -> None:
    subject, narrow = adapted_model(random_peft(CASE)), "compute_dtype" in options
    (alone,) = run_ranks(1, steps, subject, options)
    expected = alone["no_shard"]
    for results in run_ranks(ranks, steps, subject, options, node_size=1):
        for strategy, result in results.items():
            tolerance = {"rel": 1e-2} if narrow else {"rel": 1e-5, "abs": 2e-6}
            assert result["losses"] == pytest.approx(expected["losses"], **tolerance), strategy
            for name, value in result["all"].items():
                if name not in result["trained"]:
                    assert torch.equal(value, expected["all"][name]), f"{name}, {strategy}"
                elif not narrow:
                    assert_close(value, expected["all"][name], "model", f"{name}, {strategy}")


def held(groups: dict[str, str], subjects: list[AdaptedModel]) -> list[dict[str, Any]]:
    engines = [subject.engine(strategy="full_shard", **NF4, **groups) for subject in subjects]
    return [{each.unit: each.parameters for each in engine.state_digests()} for engine in engines]


def test_digests_tell_other_bits() -> None:
    subject, name = adapted_model(random_peft(CASE)), "model.layers.2.self_attn.o_proj.weight"
    other = dict(subject.parameters)
    other[name] = other[name] + 0.3
    for one, same, changed in run_ranks(2, held, [subject, subject, replace(subject, parameters=other)]):
        assert one == same != changed
        assert {unit for unit in one if one[unit] != changed[unit]} == {"block.2.frozen"}


def test_values_that_are_not_finite_are_refused_by_name() -> None:
    subject, name = adapted_model(random_peft(CASE)), "model.layers.0.mlp.up_proj.weight"
    bad = subject.parameters[name].clone()
    bad[3, 3] = torch.nan
    with pytest.raises(ValueError, match=rf"{name}: expected finite values, got NaN or infinity"):
        replace(subject, parameters={**subject.parameters, name: bad}).engine(**NF4)


def test_a_linear_that_blocks_do_not_fill_is_refused_by_name() -> None:
    model = random_peft(CASES["llama, all linears, rsLoRA, ranks that differ"])
    words = r'frozen_dtype is "nf4": model\.layers\.0\.\S+ has \d+ elements, expected a multiple of 64'
    with pytest.raises(ValueError, match=words):
        adapted_model(model).engine(**NF4)


def test_without_adapters_nothing_is_frozen() -> None:
    config = json.dumps({**json.loads(adapted_model(random_peft(CASE)).config_json)})
    with pytest.raises(ValueError, match='frozen_dtype is "nf4"'):
        new_engine(config, **NF4)
