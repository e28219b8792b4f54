"""`--early_stopping_patience`, `_threshold`: transformers' stop step, and a count that survives resumes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers

from fastsft.arguments import TrainingArguments
from fastsft.trainer.preflight import disable_evaluation
from trainer.test_trainer_surface import trainer

pytestmark = pytest.mark.usefixtures("fake_saving")


def stop_of_transformers(
    curve: list[float], patience: int, threshold: float, greater: bool | None
) -> tuple[int, int]:
    """Return step and count at which transformers' callback and Trainer end a run with this curve."""
    args = transformers.TrainingArguments(
        "o", eval_strategy="steps", metric_for_best_model="loss", greater_is_better=greater, use_cpu=True,
        report_to="none",
    )  # fmt: skip
    callback = transformers.EarlyStoppingCallback(patience, threshold)
    state, control = transformers.TrainerState(), transformers.TrainerControl()
    theirs = SimpleNamespace(args=args, state=state)
    callback.on_train_begin(args, state, control)
    for state.global_step, value in enumerate(curve, 1):
        callback.on_evaluate(args, state, control, {"eval_loss": value})
        transformers.Trainer._determine_best_metric(theirs, {"eval_loss": value}, None)  # type: ignore[arg-type]
        if control.should_training_stop:
            break
    return state.global_step, callback.early_stopping_patience_counter


def options(patience: int, threshold: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"early_stopping_patience": patience, "early_stopping_threshold": threshold, **more}


CURVES = [
    [5.0, 4.5, 4.5, 4.0, 4.5, 4.5],
    [5.0, 4.0, 3.0, 2.0, 1.0, 0.5],
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    [2.0, 2.0, 2.0, 2.0, 2.0, 2.0],
    [3.0, 2.5, 2.75, 2.25, 2.5, 2.0],
    *np.random.default_rng(0).uniform(1, 3, (5, 6)).tolist(),
]


@pytest.mark.parametrize("greater", [None, True])
@pytest.mark.parametrize(("patience", "threshold"), [(1, 0.0), (2, 0.0), (3, 0.0), (1, 0.6), (2, 0.3)])
def test_stops_where_transformers_stops(
    tmp_path: Path, patience: int, threshold: float, greater: bool | None
) -> None:
    for curve in CURVES:
        run = trainer(tmp_path, curve, **options(patience, threshold, greater_is_better=greater))
        run.train()
        step, count = stop_of_transformers(curve, patience, threshold, greater)
        (callback,) = run._run.early_stopping()
        assert (run.state.global_step, callback.early_stopping_patience_counter) == (step, count), curve
        assert bool(run._run.stop_reason) == (count >= patience)


@pytest.mark.parametrize("killed_after", [1, 2, 3, 4, 5])
def test_the_count_survives_a_resume(
    tmp_path: Path, killed_after: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Best at step 2, patience 3: the end is step 5, which a run resumed at step 5 must not pass."""
    curve, more = [5.0, 4.0, 4.5, 4.25, 4.5, 1.0], {"save_strategy": "steps", "save_steps": 1}
    first = trainer(tmp_path, curve, max_steps=killed_after, **options(3, **more))
    first.train()
    if killed_after == 5:
        assert first._run.stop_reason.startswith(
            "eval_loss 4.5 at step 5 is the evaluation number 3 in a row"
        )
    run = trainer(tmp_path, curve[killed_after:], max_steps=6, **options(3, **more))
    run.train(resume_from_checkpoint=True)
    assert run.state.global_step == 5 and run.state.best_metric == 4.0
    assert capsys.readouterr().out.count("in a row that is not better than 4: stopping") == 1
    entry = run.state.stateful_callbacks["EarlyStoppingCallback"]
    assert entry["attributes"] == {"early_stopping_patience_counter": 3}


def test_the_flag_of_now_counts_after_a_resume(tmp_path: Path) -> None:
    more = {"save_strategy": "steps", "save_steps": 1}
    trainer(tmp_path, [1.0, 2.0, 2.0], max_steps=3, **options(9, **more)).train()
    run = trainer(tmp_path, [2.0, 2.0], max_steps=5, **options(3, **more))
    run.train(resume_from_checkpoint=True)
    assert run.state.global_step == 4


def test_a_second_training_counts_anew(tmp_path: Path) -> None:
    run = trainer(tmp_path, [1.0, 2.0, 1.0, 2.0], **options(1))
    for _ in range(2):
        run.train()
        assert run.state.global_step == 2


def test_refusals(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    needs = {"output_dir": str(tmp_path), "use_cpu": True}
    with pytest.raises(
        ValueError, match=r"--early_stopping_patience 2 counts evaluations.* give --eval_strategy"
    ):
        TrainingArguments(**needs, **options(2))
    with pytest.raises(ValueError, match="--early_stopping_patience: expected at least 1, got 0"):
        TrainingArguments(**needs, **options(0), eval_strategy="epoch")
    with pytest.raises(ValueError, match=r"--early_stopping_threshold: expected 0 or more, got -0\.1"):
        TrainingArguments(**needs, **options(1, -0.1), eval_strategy="epoch")
    TrainingArguments(**needs, early_stopping_threshold=0.5)
    assert "--early_stopping_threshold 0.5 has no effect: it is read with --early_stopping_pat" in caplog.text
    args = TrainingArguments(**needs, **options(1), eval_strategy="epoch")
    assert (args.metric_for_best_model, args.greater_is_better) == ("loss", False)
    disable_evaluation(args)  # there is no data: the run is refused later, instead of never stopping
    assert args.eval_strategy == "epoch"
    run = trainer(tmp_path, **options(1))
    run.args.early_stopping_patience = 2
    with pytest.raises(ValueError, match="early_stopping_patience from 1 to 2"):
        run.train()
