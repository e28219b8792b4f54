"""One global batch of 12 under every token budget, on one to four ranks: the curve does not move."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest

from e2e.command_line import TRAINER
from engines import new_engine, train_step
from fastsft import _C
from fastsft.arguments import DataArguments, TrainingArguments
from fastsft.data import make_supervised_data_module
from fastsft.data.token_rows import TokenRows
from fastsft.model import CausalLM
from fastsft.planning.run_plan import EpochGroups, step_source
from fastsft.tokenizer import Tokenizer
from ranks import run_ranks

# ranks: (conversations a micro-batch, accumulation); the product with the ranks is always 12
SPREADS = {1: (4, 3), 2: (3, 2), 3: (2, 2), 4: (3, 1)}
STEPS = 4


class Ranks(TrainingArguments):
    """Arguments of a rank of several, without a launch."""

    engine: Any = None
    world_size = property(lambda self: self.engine.world_size)
    process_index = property(lambda self: self.engine.rank)


@functools.cache
def rows() -> TokenRows:
    model = str(TRAINER / "model_untied")
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=256, padding_side="right")
    tokenizer.pad_token = tokenizer.unk_token
    data = DataArguments(data_path=str(TRAINER / "data" / "first48.json"))
    return TokenRows.from_dataset(
        make_supervised_data_module(tokenizer=tokenizer, data_args=data)["train_dataset"], 256
    )


def curve(groups: dict[str, str], budget: int, strategy: str) -> dict[str, Any]:
    """Losses of four steps, gradient norms, and the micro-batches of each."""
    model = CausalLM.from_pretrained(str(TRAINER / "model_untied"))
    engine = new_engine(json.dumps(model.config), strategy=strategy, num_threads=1, **groups)
    _C.load_model(engine, str(model.source_directory))
    batch, accumulation = SPREADS[engine.world_size]
    args = Ranks(output_dir="o", per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation)
    args.engine = engine
    source = step_source(args, rows(), budget, model.conversation_cost())
    epoch, results, counts = EpochGroups(args, rows(), 0, source), [], []
    for step in range(STEPS):
        plan = epoch.plan(step)
        counts.append([len(batch) for batch in plan.micro_batches])
        results.append(
            train_step(
                engine, rows().native, plan.micro_batches, plan.weights, learning_rate=2e-3, weight_decay=0.1
            )
        )
    return {"losses": [r.loss for r in results], "norms": [r.grad_norm for r in results], "counts": counts}


@functools.cache
def whole() -> dict[str, Any]:
    """Everything in one micro-batch."""
    (result,) = run_ranks(1, curve, 1_000_000, "no_shard")
    assert all(len(counts) == 1 for counts in result["counts"])
    return result


@pytest.mark.variants("4-150", "2-600")
@pytest.mark.parametrize(
    ("ranks", "budget", "strategy"),
    [
        (1, 256, "no_shard"), (1, 700, "no_shard"), (2, 1, "full_shard"), (2, 600, "no_shard"),
        (3, 300, "full_shard"), (4, 2000, "shard_grad_op"), (4, 150, "full_shard"),
    ],
)  # fmt: skip
def test_the_curve_does_not_move(ranks: int, budget: int, strategy: str) -> None:
    expected, results = whole(), run_ranks(ranks, curve, budget, strategy)
    for result in results:
        assert np.abs(np.array(result["losses"]) - expected["losses"]).max() <= 1e-6
        assert result["norms"] == pytest.approx(expected["norms"], rel=1e-5)
    for step in range(STEPS):  # what was computed is the same, spread differently
        assert sum(sum(r["counts"][step]) for r in results) == sum(expected["counts"][step])
        assert len({len(r["counts"][step]) for r in results}) == 1
    if budget < 1000:
        assert max(len(counts) for counts in results[0]["counts"]) > 1
