"""reduce_lr_on_plateau has the rates of torch's scheduler after each evaluation."""

import itertools
import random

import pytest
import torch

from fastsft.arguments import TrainingArguments
from fastsft.trainer.schedule import PlateauSchedule, check_schedule, metric_key, schedule_of

OPTIONS = [
    {"mode": mode, "threshold_mode": kind, "patience": patience, "cooldown": cooldown, **rest}
    for mode, kind, patience, cooldown in itertools.product(["min", "max"], ["rel", "abs"], [0, 2], [0, 3])
    for rest in ({}, {"factor": 0.5, "min_lr": 2e-4, "threshold": 0.05})
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_torch(options):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1e-3)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
    ours, rng = PlateauSchedule(1e-3, **options), random.Random(str(options))
    seen = set()
    for step in range(60):
        metric = rng.uniform(-1, 3) if step % 7 else 0.1
        theirs.step(metric)
        ours.take(metric)
        assert ours.rate(step) == optimizer.param_groups[0]["lr"]
        seen.add(ours.rate(step))
    assert len(seen) > 1


def plateau(**flags):
    return TrainingArguments(
        "out", use_cpu=True, lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="steps", eval_steps=1,
        lr_scheduler_kwargs={"patience": 0, "factor": 0.5}, learning_rate=1.0, **flags,
    )  # fmt: skip


def test_a_resumed_run_takes_the_evaluations_of_its_history():
    history = [{"eval_loss": 1.0, "step": 0}, {"eval_loss": 3.0, "step": 1}, {"loss": 9.0, "step": 1},
               {"eval_loss": 4.0, "step": 2}]  # fmt: skip
    assert schedule_of(plateau(), 10).rate(0) == 1.0
    # The evaluation before the first step does not count, as in transformers.
    assert schedule_of(plateau(), 10, history).rate(2) == 0.5


def test_needs_evaluation_and_names_its_metric():
    with pytest.raises(ValueError, match="needs --eval_strategy"):
        TrainingArguments("out", use_cpu=True, lr_scheduler_type="reduce_lr_on_plateau")
    assert metric_key(plateau().metric_for_best_model) == "eval_loss"
    assert metric_key("eval_loss") == "eval_loss"


@pytest.mark.parametrize(
    ("options", "message"), [({"mode": "low"}, "mode is min or max"), ({"factor": 1.5}, "below 1")]
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        PlateauSchedule(1.0, **options)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("cosine_with_min_lr", None, "exactly one of min_lr and min_lr_rate; give --lr_scheduler_kwargs"),
        ("warmup_stable_decay", None, "needs num_decay_steps; give"),
        ("polynomial", {"lr_end": 1}, "lr_end below the learning rate 5e-05, got 1$"),
        ("polynomial", {"power": [1]}, r"power: expected a number or a word, got \[1\]"),
        ("linear", {"foo": 1}, 'has no option "foo"'),
        ("reduce_lr_on_plateau", {"foo": 1}, 'has no option "foo"; it takes mode, factor'),
        ("reduce_lr_on_plateau", {"factor": "low"}, "expected a number for factor, got 'low'"),
    ],
)
def test_options_are_refused_before_the_length_is_known(kind, options, message):
    args = TrainingArguments(
        "out", use_cpu=True, lr_scheduler_type=kind, lr_scheduler_kwargs=options, eval_strategy="epoch"
    )
    with pytest.raises(
        ValueError, match=f"^--lr_scheduler_kwargs of --lr_scheduler_type {kind}: .*{message}"
    ):
        check_schedule(args)
    with pytest.raises(ValueError, match=r"lr_scheduler_kwargs|needs num_decay_steps"):
        schedule_of(args, 10)


def test_options_that_a_schedule_takes():
    for kind, options in [
        ("polynomial", None), ("warmup_stable_decay", {"num_decay_steps": 5}),
        ("cosine_with_min_lr", {"min_lr": 0, "min_lr_rate": None}), ("reduce_lr_on_plateau", {"mode": "max"}),
    ]:  # fmt: skip
        check_schedule(
            TrainingArguments(
                "out",
                use_cpu=True,
                lr_scheduler_type=kind,
                lr_scheduler_kwargs=options,
                eval_strategy="epoch",
            )
        )
