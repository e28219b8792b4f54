"""The policies of --on_nonfinite (stop, skip, rollback), their limits, loss spikes, and resumed runs."""

from __future__ import annotations

import json
import math
import types

import pytest

from fastsft import saving
from fastsft.runtime.errors import NotFiniteError
from fastsft.trainer.bad_steps import BadSteps, RollBackError
from injected_faults import at_call, op_fault
from saving_run import make_trainer
from tiny_models import weights_of, write_model


def judge_of(**options):
    defaults = {
        "fp16": False,
        "on_nonfinite": "skip",
        "max_nonfinite_skips": 3,
        "loss_spike_factor": 3.0,
        "loss_spike_patience": 2,
    }
    return BadSteps(types.SimpleNamespace(**{**defaults, **options}))


def result(loss, finite=True):
    return types.SimpleNamespace(loss=loss, grad_norm=1.0 if finite else math.nan, finite=finite)


def feed(judge, losses, first=1):
    return [judge.judge(first + i, result(loss), judge.loss_limit()) for i, loss in enumerate(losses)]


def test_a_limit_needs_eight_losses_and_follows_the_last_32():
    judge = judge_of()
    feed(judge, [2.0] * 7)
    assert judge.loss_limit() == math.inf
    feed(judge, [2.0])
    assert judge.loss_limit() == 6.0
    feed(judge, [1.0] * 32)
    assert judge.loss_limit() == 3.0
    assert judge_of(loss_spike_factor=0).loss_limit() == math.inf


def spike(judge, step, loss=20.0):
    return judge.judge(step, result(loss, finite=False), judge.loss_limit())


def test_single_spikes_are_left_out_and_rows_of_them_answered():
    judge = judge_of(on_nonfinite="stop")
    feed(judge, [2.0] * 8)
    assert not spike(judge, 9) and feed(judge, [2.0], 10) == [True]
    assert not spike(judge, 11)
    with pytest.raises(NotFiniteError, match=r"step 12: loss 20 is above 6, 3 times the mean; it changed no"):
        spike(judge, 12)


def test_a_row_of_spikes_goes_back_before_its_first():
    judge = judge_of(on_nonfinite="rollback")
    feed(judge, [2.0] * 8)
    spike(judge, 9)
    with pytest.raises(RollBackError) as asked:
        spike(judge, 10)
    assert asked.value.steps == [9, 10]


def test_no_more_than_so_many_are_left_out():
    judge = judge_of(max_nonfinite_skips=2)
    for step in (1, 2):
        assert not judge.judge(step, result(math.nan, False), math.inf)
    with pytest.raises(NotFiniteError, match=r"step 3: loss nan.*2 groups are left out already \(--max_"):
        judge.judge(3, result(math.nan, False), math.inf)


def test_a_resumed_judge_goes_on():
    judge = judge_of()
    feed(judge, [2.0] * 10)
    spike(judge, 11)
    judge.rolled_back([13])
    other = judge_of()
    other.restore(json.loads(json.dumps(judge.state())))
    assert other.state() == judge.state() and other.loss_limit() == 6.0 and other.left_out == {13}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), "untied")


def spoilt(call):
    """Put a NaN into the gradient of micro-batch number `call`; each step has one micro-batch."""

    def act(original, args, kwargs):
        original(*args, **kwargs)
        args[2].view(-1)[0] = math.nan

    return at_call(call, act)


def run(model, output, call=None, **options):
    trainer = make_trainer(model, output, micro_batch_tokens=1000, **options)
    if call is None:
        trainer.train()
    else:
        with op_fault("embedding_backward", spoilt(call)):
            trainer.train()
    saving.trainer_save_model_safe(trainer)
    return trainer


def weights(output):
    return {name: tensor.tolist() for name, tensor in weights_of(output).items()}


def losses(trainer):
    return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


def test_stop_is_the_default_and_keeps_the_last_checkpoint(model, tmp_path):
    with pytest.raises(NotFiniteError, match=r"step 4: .* norm nan: not finite; it changed no weight"):
        run(model, tmp_path, call=4)
    assert saving.newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")


def test_skipping_goes_on_without_the_step(model, tmp_path, capsys):
    """The optimizer counts one step less, but the schedule advances as usual."""
    trainer = run(model, tmp_path, call=4, on_nonfinite="skip")
    assert trainer.state.global_step == 6 and trainer.engine.step_count == 5
    assert "step 4: loss " in capsys.readouterr().out
    assert 4 in losses(trainer) and all(map(math.isfinite, losses(trainer).values()))


def test_rolling_back_leaves_the_group_out(model, tmp_path, capsys):
    """After the return to checkpoint-2, steps 3, 5 and 6 are those of a run that skips step 4."""
    skipped = run(model, tmp_path / "skip", call=4, on_nonfinite="skip")
    rolled = run(model, tmp_path / "back", call=4, on_nonfinite="rollback")
    line = next(text for text in capsys.readouterr().out.splitlines() if "; back to" in text)
    assert "checkpoint-2, leaving out step 4" in line
    assert weights(tmp_path / "skip") == weights(tmp_path / "back")
    assert rolled.engine.step_count == skipped.engine.step_count == 5


def test_a_run_resumed_after_a_rollback_leaves_the_group_out_too(model, tmp_path):
    whole = run(model, tmp_path / "whole", call=4, on_nonfinite="rollback", save_steps=1)
    for step in (5, 6):
        _remove(tmp_path / "whole" / f"checkpoint-{step}")
    again = make_trainer(
        model, tmp_path / "whole", micro_batch_tokens=1000, on_nonfinite="rollback", save_steps=1
    )
    again.train(resume_from_checkpoint=True)
    assert again.engine.step_count == whole.engine.step_count == 5
    assert again._run.stepper.bad_steps.left_out == {4}


def _remove(directory):
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()


def test_without_a_checkpoint_there_is_no_way_back(model, tmp_path):
    with pytest.raises(NotFiniteError, match=r"step 1: .*no checkpoint of an earlier step to go back to"):
        run(model, tmp_path, call=1, on_nonfinite="rollback")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_nonfinite": "rollback", "save_strategy": "no"}, "writes none"),
        ({"loss_spike_factor": 0.5}, "expected 0 .off. or a factor above 1, got 0.5"),
        ({"max_nonfinite_skips": -1}, "max_nonfinite_skips: expected at least 0, got -1"),
        ({"phase_timeouts": "stp=3"}, "init=SECONDS,.*got 'stp=3'"),
        ({"phase_timeouts": "step=0"}, "got 'step=0'"),
    ],
)
def test_limits_that_mean_nothing(model, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(model, tmp_path, **options)
