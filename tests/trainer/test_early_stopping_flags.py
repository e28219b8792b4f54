"""`--early_stopping_patience`, `_threshold`: transformers' stop step, and a count that survives resumes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers

from fastsft.arguments import TrainingArguments
from fastsft.callbacks import TrainerCallback
from fastsft.trainer.early_stopping import EarlyStoppingCallback
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
    assert entry["attributes"]["early_stopping_patience_counter"] == 3


def test_the_flag_of_now_counts_after_a_resume(tmp_path: Path) -> None:
    more = {"save_strategy": "steps", "save_steps": 1}
    trainer(tmp_path, [1.0, 2.0, 2.0], max_steps=3, **options(9, **more)).train()
    run = trainer(tmp_path, [2.0, 2.0], max_steps=5, **options(3, **more))
    run.train(resume_from_checkpoint=True)
    assert run.state.global_step == 4


SAVES = {"save_strategy": "steps", "save_steps": 1}


class Stopper(TrainerCallback):
    """Ends a run at its first evaluation."""

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = True


def test_the_evaluation_at_the_start_of_a_resumed_run_does_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint's weights are no better than themselves; the next steps improve."""
    trainer(tmp_path, [3.0, 2.0, 1.5], max_steps=3, **options(1, **SAVES)).train()
    more = options(1, eval_on_start=True, **SAVES)
    run = trainer(tmp_path, [1.5, 1.4, 1.3, 1.2], max_steps=6, **more)
    run.train(resume_from_checkpoint=True)
    assert run.state.global_step == 6 and not run._run.stop_reason and not run._run.stopped_early
    assert "stopping" not in capsys.readouterr().out
    fresh = trainer(tmp_path / "fresh", [3.0, 3.5, 3.6], **options(1, eval_on_start=True))
    fresh.train()  # as in transformers, the evaluation at the start has no best value to be compared with
    assert fresh.state.global_step == 2
    trainer(tmp_path / "own", [3.0], max_steps=1, **options(1, **SAVES)).train()
    stopped = trainer(tmp_path / "own", callbacks=[Stopper()], max_steps=6, **more)
    stopped.train(resume_from_checkpoint=True)
    assert stopped.state.global_step <= 2 and not stopped._run.stopped_early


def test_a_full_count_in_the_checkpoint_says_why_nothing_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer(tmp_path, [1.0, 2.0], max_steps=2, **options(1, **SAVES)).train()
    capsys.readouterr()
    run = trainer(tmp_path, max_steps=8, **options(1, **SAVES))
    run.train(resume_from_checkpoint=True)
    reason = "eval_loss 2 at step 2 is the evaluation number 1 in a row that is not better than 1"
    said = f"the checkpoint's patience had run out ({reason}): nothing is trained; a larger"
    assert said in capsys.readouterr().out
    assert run.state.global_step == 2 and run._run.stop_reason == reason
    larger = trainer(tmp_path, [0.5] * 6, max_steps=4, **options(2, **SAVES))
    larger.train(resume_from_checkpoint=True)
    assert larger.state.global_step == 4 and not larger._run.stop_reason


def test_evaluations_after_the_training_do_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = EarlyStoppingCallback(9)
    run = trainer(tmp_path, [1.0, 0.5, 9.0, 9.0], callbacks=[own], max_steps=2, **options(1))
    run.train()
    for _ in range(2):
        run.evaluate()
    (callback,) = run._run.early_stopping()
    assert not callback.has_stopped and not run._run.stop_reason
    assert "stopping" not in capsys.readouterr().out
    assert own.early_stopping_patience_counter == 2  # a script's callback is transformers'


def test_a_second_training_counts_anew(tmp_path: Path) -> None:
    run = trainer(tmp_path, [1.0, 2.0, 1.0, 2.0], **options(1))
    for _ in range(2):
        run.train()
        assert run.state.global_step == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"eval_steps": 100}, "--eval_steps 100 evaluates none"),
        ({"eval_steps": 3, "eval_delay": 4}, "--eval_steps 3 with --eval_delay 4 evaluates none"),
        ({"eval_strategy": "epoch", "eval_delay": 9}, "--eval_strategy epoch with --eval_delay 9 evaluates"),
        ({"eval_steps": 4}, ""),
        ({"eval_steps": 0.5}, ""),
        ({"eval_strategy": "epoch"}, ""),
        ({"eval_steps": 2, "eval_delay": 3}, ""),
    ],
)
def test_a_run_without_evaluations_says_so(
    tmp_path: Path, flags: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What is said is right: transformers' rule decides at each of the four steps of the run."""
    run = trainer(tmp_path, **options(2, max_steps=4, **flags))
    run.train()
    assert any("eval_loss" in entry for entry in run.state.log_history) == (not said)
    assert ("will have no effect" in caplog.text) == bool(said) and said in caplog.text


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
