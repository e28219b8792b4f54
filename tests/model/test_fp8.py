"""Linear layers in 8-bit floats: gradients of a plain model, torchao's curves, and what they depend on."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engines import new_engine, train_step
from fastsft import _C
from fp8_linears import E4M3, E5M2, add_adapters, put_in_8_bits
from ranks import run_ranks
from runs import random_dataset
from tolerances import FP8_CURVES, FP8_WGRAD_CURVES, relative_error

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "fp8" / "curves.json").read_text())
PHI3: dict[str, Any] = RECORDED["models"]["phi3 of 2 layers"]["config"]
VOCAB = PHI3["vocab_size"]
RECIPES: dict[str, dict[str, Any]] = {
    "rowwise": {"fp8": "rowwise", "fp8_format": "e4m3"},
    "tensorwise": {"fp8": "tensorwise", "fp8_format": "hybrid"},
    "rowwise hybrid": {"fp8": "rowwise", "fp8_format": "hybrid"},
    "rowwise wgrad": {"fp8": "rowwise", "fp8_format": "e4m3", "fp8_wgrad": True},
    "tensorwise wgrad": {"fp8": "tensorwise", "fp8_format": "hybrid", "fp8_wgrad": True},
}
NARROW = {"compute_dtype": "bfloat16"}
# Errors of gradients by values of 8 bits that differences of bfloat16 have moved; the second if weight
# gradients are products of such values
FLIPS, FLIPS_OF_PRODUCTS = 0.06, 0.07


def new_weights(config: dict[str, Any]) -> dict[str, Tensor]:
    """The weights of the recorder: norms are about 1."""
    generator, made = torch.Generator().manual_seed(0), {}
    shapes = dict(_C.parameter_shapes(json.dumps(config)))
    for name in sorted(shapes):
        fresh = 0.05 * torch.randn(shapes[name], generator=generator)
        made[name] = 1 + fresh if name.endswith("norm.weight") else fresh
    return made


def engine_of(config: dict[str, Any], **options: Any) -> _C.Engine:
    engine = new_engine(json.dumps(config), **NARROW, **options)
    for name, value in new_weights(config).items():
        engine.set_parameter(name, value)
    engine.publish()
    return engine


def dataset_of(rows: list[list[int]]) -> _C.TokenDataset:
    dataset = _C.TokenDataset()
    for row in rows:
        dataset.append(np.array(row, np.int32), [(0, len(row))])
    return dataset


def gradients_of_plain_model(
    config: dict[str, Any],
    rows: list[list[int]],
    recipe: dict[str, Any],
    fp8_layers: Any,
    adapters: dict[str, Tensor] | None = None,
) -> tuple[float, dict[str, Tensor]]:
    """The loss and gradients of transformers' model with linear layers in plain torch.

    adapters: A and B by name, of scale 2; the gradients are then theirs.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="sdpa")
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(new_weights(config)[name])
    model.to(torch.bfloat16)
    kind = {"e4m3": E4M3, "hybrid": E5M2}[recipe["fp8_format"]]
    put_in_8_bits(model, recipe["fp8"], kind, fp8_layers, wgrad=recipe.get("fp8_wgrad", False))
    low = add_adapters(model, adapters or {}, scale=2.0)
    ids = torch.tensor(rows)
    logits = model(ids, use_cache=False).logits.float()
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
    loss.backward()
    trained = low or dict(model.named_parameters())
    return loss.item(), {name: value.grad.float() for name, value in trained.items()}


def gradients(engine: _C.Engine, rows: list[list[int]]) -> tuple[float, dict[str, Tensor]]:
    dataset = dataset_of(rows)
    weights = np.full(len(rows), 1 / dataset.target_counts().sum())
    return engine.gradients(dataset, np.arange(len(rows)), weights)


def usual_error(ours: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The median of the tensors' errors."""
    return median(relative_error(ours[name], value) for name, value in expected.items())


@pytest.mark.parametrize("recipe", RECIPES)
def test_gradients_are_those_of_plain_torch(recipe: str) -> None:
    """As far as 8 bits let them: a last bit of bfloat16 moves one value in some thirty by a step.

    Without fp8 the engine is 0.007 from a plain model without it.
    """
    rows, options = RECORDED["rows"][:4], RECIPES[recipe]
    expected_loss, expected = gradients_of_plain_model(PHI3, rows, options, lambda _: True)
    loss, ours = gradients(engine_of(PHI3, **options), rows)
    _, without = gradients(engine_of(PHI3), rows)
    error, other = usual_error(ours, expected), usual_error(without, expected)
    print(f"{recipe}: {error:.4f}, without fp8 {other:.4f}; loss {loss - expected_loss:.5f}")
    assert loss == pytest.approx(expected_loss, abs=3e-3)
    assert error <= (FLIPS_OF_PRODUCTS if "fp8_wgrad" in options else FLIPS) and error < 0.7 * other


def test_the_format_of_output_gradients() -> None:
    """Of the layer whose gradient has gone through one product of 8 bits; the next has none behind it."""
    rows, last = RECORDED["rows"][:4], "model.layers.1.mlp.gate_up_proj.weight"
    made, plain = {}, {}
    for name in ("rowwise", "rowwise hybrid"):
        made[name] = gradients(engine_of(PHI3, **RECIPES[name]), rows)[1]
        plain[name] = gradients_of_plain_model(PHI3, rows, RECIPES[name], lambda _: True)[1]
    for name, other in (("rowwise", "rowwise hybrid"), ("rowwise hybrid", "rowwise")):
        own = relative_error(made[name][last], plain[name][last])
        assert own < 0.9 * relative_error(made[name][last], plain[other][last])
    down = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(made["rowwise"][down], made["rowwise hybrid"][down])


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize(
    "linear", ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"]
)
def test_weight_gradients_are_products_of_8_bits(linear: str, layer: int) -> None:
    """Only the first of two tokens has a gradient, so each element is a product of two numbers of 8 bits.

    Those of e4m3 are integers from 8 to 15, times powers of two.
    """
    name = f"model.layers.{layer}.{linear}.weight"
    made, without = (
        gradients(engine_of(PHI3, **RECIPES[recipe]), [[5, 7]])[1][name]
        for recipe in ("rowwise wgrad", "rowwise")
    )
    products = torch.outer(torch.arange(8, 16), torch.arange(8, 16)).double()
    allowed = torch.frexp(products).mantissa.flatten()
    elements = [torch.frexp(each[each != 0].abs().double()).mantissa for each in (made, without)]
    found, other = (torch.isin(each, allowed) for each in elements)
    assert len(found) > made.numel() // 5 and found.all() and other.float().mean() < 0.2
    assert 0.01 < relative_error(made, without) < 1 / 16


def test_columns_of_weights_have_scales_of_their_own_in_backward() -> None:
    """With one scale the gradients behind tiny columns underflow."""
    config, tiny, rows = {**PHI3, "num_hidden_layers": 1}, slice(0, 8), RECORDED["rows"][:2]
    weight, norm = (
        f"model.layers.0.{name}.weight" for name in ("mlp.gate_up_proj", "post_attention_layernorm")
    )
    values = new_weights(config)[weight]
    values[:, tiny] *= 2.0**-30
    found = {}
    for recipe in ("rowwise", "rowwise wgrad"):
        engine = engine_of(config, **RECIPES[recipe])
        engine.set_parameter(weight, values)
        engine.publish()
        found[recipe] = gradients(engine, rows)[1][norm]
    assert not found["rowwise"][tiny].any()
    assert found["rowwise wgrad"][tiny].all()
    assert relative_error(found["rowwise wgrad"][8:], found["rowwise"][8:]) < 0.05


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_adapters_over_a_base_in_8_bits(recompute: str) -> None:
    """Their own products are of bfloat16; what they get of the base is of 8 bits, in both directions."""
    rows, options = RECORDED["rows"][:4], {**RECIPES["rowwise"], "recompute": recompute}
    names = [f"model.layers.{i}.{name}" for i in range(2) for name in ("self_attn.qkv_proj", "mlp.down_proj")]
    linears = [_C.AdapterLinear(name, rank=4, scale=2.0) for name in names]
    adapters = _C.AdapterOptions(linears=linears)
    shapes = new_engine(json.dumps(PHI3), adapters=adapters).trained_shapes
    generator = torch.Generator().manual_seed(1)
    low = {name: 0.1 * torch.randn(shapes[name], generator=generator) for name in shapes if "lora_" in name}

    def ours(**changes: Any) -> dict[str, Tensor]:
        engine = new_engine(json.dumps(PHI3), **NARROW, adapters=adapters, **{**options, **changes})
        for name, value in (new_weights(PHI3) | low).items():
            engine.set_parameter(name, value)
        engine.publish()
        return gradients(engine, rows)[1]

    expected = gradients_of_plain_model(PHI3, rows, RECIPES["rowwise"], lambda _: True, low)[1]
    error = usual_error(ours(), expected)
    other = usual_error(ours(fp8="none"), expected)
    print(f"{error:.4f}, without fp8 {other:.4f}")
    assert set(low) == set(expected) and error <= FLIPS and error < 0.7 * other


def test_blocks_that_stay_in_bfloat16() -> None:
    config = {**PHI3, "num_hidden_layers": 4}
    rows, options = RECORDED["rows"][:4], RECIPES["rowwise"]
    kept = {"num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 2}
    _, expected = gradients_of_plain_model(config, rows, options, lambda layer: layer == 1)
    _, ours = gradients(engine_of(config, **options, **kept), rows)
    _, all_blocks = gradients(engine_of(config, **options), rows)
    assert usual_error(ours, expected) <= FLIPS
    assert usual_error(ours, expected) < 0.7 * usual_error(all_blocks, expected)


def curve(config: dict[str, Any], **options: Any) -> np.ndarray:
    """The losses of the recorder's steps."""
    engine, rows = engine_of(config, **options), RECORDED["rows"]
    dataset, steps = dataset_of(rows), np.arange(len(rows)).reshape(-1, 4)
    weights = np.full(4, 1 / dataset.target_counts()[:4].sum())
    settings = {"learning_rate": 2e-3, "max_grad_norm": 1.0}
    return np.array([train_step(engine, dataset, [step], [weights], **settings).loss for step in steps])


@pytest.mark.parametrize("recipe", RECORDED["models"]["phi3 of 2 layers"]["losses"])
@pytest.mark.parametrize("model", RECORDED["models"])
def test_curves_are_those_of_torchao(model: str, recipe: str) -> None:
    """Phi-3 has torchao's linear layers; those of a Llama share scales in groups here."""
    recorded = RECORDED["models"][model]
    ours = curve(recorded["config"], **RECIPES.get(recipe, {}))
    theirs = np.array(recorded["losses"][recipe])
    apart = np.abs(ours - theirs)
    print(f"{model}, {recipe}: {theirs[0]:.3f} to {theirs[-1]:.3f}; {apart.max():.4f}, {apart.mean():.4f}")
    assert theirs[-3:].mean() < theirs[:3].mean() - 0.7, "nothing is learned"
    band = (FP8_WGRAD_CURVES if recipe.endswith("wgrad") else FP8_CURVES)[
        recorded["config"]["num_hidden_layers"]
    ]
    assert apart.max() <= band.largest and apart.mean() <= band.mean


@pytest.mark.parametrize("recompute", [name for name in _C.recompute_policies() if name != "none"])
@pytest.mark.parametrize("recipe", ["rowwise", "tensorwise", "rowwise wgrad", "tensorwise wgrad"])
def test_what_is_computed_again_has_the_same_bits(recipe: str, recompute: str) -> None:
    rows, options = RECORDED["rows"][:4], RECIPES[recipe]
    (loss, kept), (again, made) = (
        gradients(engine_of(PHI3, recompute=policy, **options), rows) for policy in ("none", recompute)
    )
    assert loss == again and all(torch.equal(made[name], value) for name, value in kept.items())


def test_rowwise_losses_do_not_depend_on_the_cut_into_micro_batches() -> None:
    """A scale of a whole matrix does: it has the largest value of the other conversations."""

    def loss_apart(recipe: str) -> float:
        engine, dataset = engine_of(PHI3, **RECIPES[recipe]), dataset_of(RECORDED["rows"][:4])
        whole = engine.loss(dataset, np.arange(4), np.full(4, 0.01))
        single = sum(engine.loss(dataset, np.array([row]), np.full(1, 0.01)) for row in range(4))
        return abs(whole - single)

    assert loss_apart("rowwise") < 1e-6 < loss_apart("tensorwise")


def test_evaluation_is_in_8_bits_too() -> None:
    """Its loss is that of the training pass."""
    rows = RECORDED["rows"][:4]
    dataset, weights = dataset_of(rows), np.full(4, 0.01)
    for recipe in ("rowwise", "tensorwise"):
        engine = engine_of(PHI3, **RECIPES[recipe])
        trained, _ = engine.gradients(dataset, np.arange(4), weights)
        assert engine.loss(dataset, np.arange(4), weights) == trained


def _steps(groups: dict[str, str], options: dict[str, Any]) -> list[float]:
    engine = engine_of(PHI3, **options, **groups)
    dataset = random_dataset(8, VOCAB, 40)
    rows = np.arange(8)[engine.rank :: engine.world_size]
    weights = np.full(len(rows), 1 / dataset.target_counts().sum())
    return [train_step(engine, dataset, [rows], [weights], learning_rate=1e-3).loss for _ in range(3)]


@pytest.mark.parametrize("strategy", ["no_shard", "full_shard"])
def test_two_ranks_have_the_losses_of_one(strategy: str) -> None:
    """With a scale for each token, and weights that every rank has whole when they are quantised."""
    (alone,) = run_ranks(1, _steps, RECIPES["rowwise"])
    for losses in run_ranks(2, _steps, {**RECIPES["rowwise"], "strategy": strategy}):
        assert losses == pytest.approx(alone, abs=1e-3)


def adapters_of(layers: int) -> _C.AdapterOptions:
    names = [
        f"model.layers.{i}.{name}" for i in range(layers) for name in ("self_attn.o_proj", "mlp.down_proj")
    ]
    return _C.AdapterOptions(linears=[_C.AdapterLinear(name, rank=4, scale=2.0) for name in names])


def trained(engine: _C.Engine) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and weights of steps of two micro-batches, with evaluations between and weights that are set."""
    dataset, name = dataset_of(RECORDED["rows"]), "model.layers.0.mlp.down_proj.weight"
    first, *more = (np.arange(row, row + 4) for row in (0, 4, 8))
    weights, losses = np.full(2, 1 / dataset.target_counts()[:4].sum()), []

    def step(rows: np.ndarray) -> None:
        losses.append(engine.loss(dataset, rows[:2], weights))
        found = train_step(engine, dataset, [rows[:2], rows[2:]], [weights, weights], learning_rate=5e-3)
        losses.append(found.loss)

    step(first)
    engine.set_parameter(name, 0.5 * engine.named_parameters()[name])
    engine.publish()
    for rows in more:
        step(rows)
    return losses, engine.named_parameters()


@pytest.mark.parametrize("with_adapters", [False, True], ids=["all weights", "adapters"])
@pytest.mark.parametrize("changes", [{}, {"recompute": "block", "tile_tokens": 64}], ids=["", "block, tiles"])
@pytest.mark.parametrize("recipe", ["rowwise", "tensorwise", "rowwise wgrad"])
def test_kept_weights_have_the_bits_of_those_of_each_product(
    recipe: str, changes: dict[str, Any], with_adapters: bool
) -> None:
    """Also after a step, after weights were set, and below the lowest block that is trained."""
    if recipe == "tensorwise":
        changes = {name: value for name, value in changes.items() if name != "tile_tokens"}
    options = {**RECIPES[recipe], **changes, "num_layers_at_end_in_bf16": 1}
    config = {**PHI3, "num_hidden_layers": 3}
    if with_adapters:
        options["adapters"] = _C.AdapterOptions(linears=adapters_of(3).linears[2:])
    (losses, made), (again, kept) = (
        trained(engine_of(config, **options, keep_fp8_weights=keep)) for keep in (False, True)
    )
    assert losses == again and made.keys() == kept.keys()
    assert all(torch.equal(kept[name], value) for name, value in made.items())
    assert len(set(losses)) == len(losses), "nothing is learned"


def _kept_steps(groups: dict[str, str], strategy: str, with_adapters: bool, keep: bool) -> list[float]:
    options = {"adapters": adapters_of(2)} if with_adapters else {}
    return _steps(groups, {**RECIPES["rowwise"], **options, "strategy": strategy, "keep_fp8_weights": keep})


@pytest.mark.parametrize("with_adapters", [False, True], ids=["all weights", "adapters"])
@pytest.mark.parametrize("strategy", ["no_shard", "shard_grad_op"])
def test_ranks_with_whole_weights_keep_them(strategy: str, with_adapters: bool) -> None:
    made, kept = (run_ranks(2, _kept_steps, strategy, with_adapters, keep) for keep in (False, True))
    assert made == kept


def _refused(groups: dict[str, str]) -> str:
    with pytest.raises(ValueError) as error:
        engine_of(PHI3, **RECIPES["rowwise"], strategy="full_shard", keep_fp8_weights=True, **groups)
    return str(error.value)


def test_sharded_weights_are_not_kept() -> None:
    words = "use no_shard or shard_grad_op, or leave keep_fp8_weights out"
    assert all(text.endswith(words) for text in run_ranks(2, _refused))
    options = {**NARROW, **RECIPES["rowwise"], "keep_fp8_weights": True, "strategy": "full_shard"}
    state = _C.StateOptions(**options)
    with pytest.raises(ValueError, match=words):
        _C.plan_memory(json.dumps(PHI3), state, world_size=2)
    _C.plan_memory(json.dumps(PHI3), state)  # one rank has all


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fp8": "none", "fp8_format": "e4m3", "keep_fp8_weights": True}, 'True, but fp8 is "none"'),
        ({"fp8": "none", "fp8_format": "e4m3", "fp8_wgrad": True}, 'True, but fp8 is "none"'),
        ({"compute_dtype": "float32"}, "fp8 quantises bfloat16, but compute_dtype is not bfloat16"),
        ({"compute_dtype": "float16"}, "use --bf16 True with --fp8"),
        ({"num_layers_at_start_in_bf16": 2}, "expected fewer than the 2 blocks together, got 2 and 0"),
        ({"num_layers_at_end_in_bf16": -1}, "expected at least 0"),
    ],
)
def test_other_options_are_refused(change: dict[str, Any], message: str) -> None:
    options = {**NARROW, **RECIPES["rowwise"], **change}
    with pytest.raises(ValueError, match=message):
        new_engine(json.dumps(PHI3), **options)


def test_sizes_that_cublaslt_does_not_multiply_are_refused() -> None:
    config = json.dumps({**PHI3, "intermediate_size": 120})
    with pytest.raises(ValueError, match=r"multiples of 16, got mlp\.down_proj with 120 inputs"):
        new_engine(config, **NARROW, fp8="rowwise")
    with pytest.raises(ValueError, match="multiples of 16"):
        _C.plan_memory(config, _C.StateOptions(**NARROW, fp8="tensorwise"))
