"""Learning rates against those of transformers, recorded and computed side by side."""

import json
from pathlib import Path

import pytest
import torch
from transformers import get_scheduler

from fastsft import _C

GOLDEN = Path(__file__).parents[1] / "golden" / "trainer" / "schedules.json"
CASES = json.loads(GOLDEN.read_text())


def schedule(case):
    return _C.Schedule(
        case["name"],
        learning_rate=case["learning_rate"],
        warmup_steps=case["warmup_steps"],
        total_steps=case["total_steps"],
        options=case["kwargs"],
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['name']}-{case['warmup_steps']}")
def test_recorded_rates(case):
    ours = schedule(case)
    for step, rate in enumerate(case["rates"]):
        assert ours.rate(step) == pytest.approx(rate, rel=0, abs=1e-12 * case["learning_rate"])


KWARGS = {
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 3},
}


@pytest.mark.parametrize(("warmup_steps", "total_steps"), [(0, 1), (1, 1), (4, 9), (0, 7), (6, 6)])
@pytest.mark.parametrize("name", _C.schedule_names())
def test_short_runs(name, warmup_steps, total_steps):
    case = {"name": name, "kwargs": KWARGS.get(name, {}), "learning_rate": 2e-5}
    ours = schedule({**case, "warmup_steps": warmup_steps, "total_steps": total_steps})
    if name == "polynomial" and warmup_steps == total_steps:  # the original divides by zero at the end
        assert ours.rate(total_steps) == pytest.approx(1e-7)
        return
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-5)
    theirs = get_scheduler(
        name, optimizer, warmup_steps, total_steps, scheduler_specific_kwargs=case["kwargs"]
    )
    for step in range(total_steps):
        assert ours.rate(step) == pytest.approx(theirs.get_last_lr()[0], rel=0, abs=1e-17)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cosin", {}, "unknown learning rate schedule"),
        ("linear", {"power": 2}, "it takes none"),
        ("polynomial", {"lr_end": 1.0}, "lr_end below the learning rate"),
        ("cosine_with_min_lr", {}, "exactly one of min_lr and min_lr_rate"),
        ("cosine_with_min_lr", {"min_lr": 0.0, "min_lr_rate": 0.1}, "exactly one of"),
        ("warmup_stable_decay", {}, "num_decay_steps"),
        ("warmup_stable_decay", {"num_decay_steps": 2, "decay_type": "square"}, "decay_type"),
        ("cosine", {"num_cycles": "two"}, "a number for num_cycles"),
    ],
)
def test_bad_requests(name, options, message):
    with pytest.raises(ValueError, match=message):
        schedule(
            {"name": name, "kwargs": options, "learning_rate": 1e-3, "warmup_steps": 0, "total_steps": 9}
        )
