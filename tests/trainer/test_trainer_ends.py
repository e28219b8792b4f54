"""A loop that ends early: bad numbers, callbacks, signals. The engine is a small fake."""

import os
import signal

import pytest

from fake_run import Engine, fake_trainer
from fastsft.callbacks import TrainerCallback

pytestmark = pytest.mark.usefixtures("fake_saving")


@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("logging_steps", [1, 100])
def test_bad_numbers_stop_the_run_and_name_the_step(tmp_path, behind, logging_steps):
    run = fake_trainer(tmp_path, engine=Engine(bad_step=3, behind=behind), logging_steps=logging_steps)
    with pytest.raises(RuntimeError, match="step 3: loss nan"):
        run.train()
    assert run.state.global_step == 2
    assert len(run.engine.steps) == (3 if behind and logging_steps > 1 else 2)


def test_a_callback_may_stop_the_run(tmp_path):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_training_stop = state.global_step == 2

    run = fake_trainer(tmp_path, callbacks=[Stop])
    assert run.train().global_step == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_leaves(tmp_path, number, capsys):
    class Hit(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 2:
                os.kill(os.getpid(), number)

    before = signal.getsignal(number)  # a suite in the background may run with SIGINT ignored
    with pytest.raises(SystemExit) as left:
        fake_trainer(tmp_path, callbacks=[Hit]).train()
    assert left.value.code == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]
    assert "the same command resumes" in capsys.readouterr().out
    assert signal.getsignal(number) == before


def test_usr1_saves_and_goes_on(tmp_path):
    class Hit(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 2:
                os.kill(os.getpid(), signal.SIGUSR1)

    run = fake_trainer(tmp_path, callbacks=[Hit])
    assert run.train().global_step == 6
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


def test_second_interrupt_is_immediate(tmp_path):
    class Hit(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fake_trainer(tmp_path, callbacks=[Hit]).train()


def test_curves_are_there_when_a_run_ends_early(tmp_path):
    class Hit(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        fake_trainer(tmp_path / "signal", callbacks=[Hit], plot_loss=True).train()
    assert "stopped: SIGTERM" in (tmp_path / "signal" / "loss.html").read_text()
    with pytest.raises(RuntimeError):
        fake_trainer(tmp_path / "nan", engine=Engine(bad_step=3), plot_loss=True).train()
    page = (tmp_path / "nan" / "loss.html").read_text()
    assert "stopped: NotFiniteError: step 3" in page and "2 of 6" in page
