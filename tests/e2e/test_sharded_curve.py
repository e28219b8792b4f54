"""One global batch of 12, spread over one to four ranks under each strategy: the same curve and weights."""

import itertools
import json

import pytest

from e2e.command_line import TRAINER, log_history, tensors
from warm_ranks import WarmRanks

STRATEGIES = ["no_shard", "shard_grad_op", "full_shard"]
# ranks: (conversations a micro-batch, accumulation); the product with the ranks is always 12
SPREADS = {1: (4, 3), 2: (3, 2), 3: (2, 2), 4: (3, 1)}


def run(warm: WarmRanks, ranks, strategy, output_dir, **more):
    batch, accumulation = SPREADS[ranks]
    recorded = json.loads((TRAINER / "h_resume.json").read_text())["flags"]  # first48.json, model_untied
    changes = {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulation,
        "save_strategy": "no",
        "weight_decay": 0.1,
    }
    warm.train({**recorded, **changes, "fsdp": strategy, **more}, output_dir, ranks)
    steps = [entry for entry in log_history(output_dir) if "loss" in entry]
    return steps, tensors(output_dir)


@pytest.fixture(scope="module")
def alone(warm, tmp_path_factory):
    return run(warm, 1, "no_shard", tmp_path_factory.mktemp("alone"))


def check_equal(found, alone):
    (steps, weights), (expected_steps, expected_weights) = found, alone
    assert len(steps) == 4
    assert [s["loss"] for s in steps] == pytest.approx([s["loss"] for s in expected_steps], abs=2e-6, rel=0)
    assert [s["grad_norm"] for s in steps] == pytest.approx(
        [s["grad_norm"] for s in expected_steps], rel=1e-5
    )
    assert weights.keys() == expected_weights.keys()
    for name, weight in weights.items():
        error = (weight.double() - expected_weights[name].double()).norm()
        assert error <= 1e-4 * expected_weights[name].double().norm(), name


# tests/shard compares all of them inside one engine; here each strategy and number of ranks runs once.
SHORT = [(3, "shard_grad_op")]
LONG = [pair for pair in itertools.product(SPREADS, STRATEGIES) if pair not in SHORT]


@pytest.mark.parametrize(
    ("ranks", "strategy"), [*SHORT, *(pytest.param(*pair, marks=pytest.mark.chaos) for pair in LONG)]
)
def test_curve_does_not_depend_on_ranks_or_strategy(warm, alone, ranks, strategy, tmp_path):
    check_equal(run(warm, ranks, strategy, tmp_path / "out"), alone)


@pytest.mark.variants("offload")
@pytest.mark.parametrize("strategy", ["hybrid_shard auto_wrap offload", "hybrid_shard_zero2 auto_wrap"])
def test_two_nodes_of_two_on_one_machine(warm, alone, strategy, tmp_path):
    nodes = '{"hybrid_shard_size": 2}'
    check_equal(run(warm, 4, strategy, tmp_path / "out", fsdp_config=nodes), alone)
