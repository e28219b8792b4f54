"""fastsft.launch: ranks as child processes, their end, their errors, and interrupts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

import fastsft
from fastsft.notebook.launch import default_processes, launch
from fastsft.program.rank_failure import RankFailed, last_words
from fastsft.train import train
from launched_runs import FLAGS, processes_with

PACKAGE = Path(fastsft.__file__).parents[1]
DRIVER = """
import json, sys, fastsft
fastsft.launch(json.loads(sys.argv[1]), num_processes=2, env={"FASTSFT_TEST_MARK": sys.argv[2]})
"""


def start_driver(output, mark, **flags):
    words = json.dumps({**FLAGS, "output_dir": str(output), "max_steps": 100_000, **flags})
    env = {**os.environ, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, words, mark], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip


def read_until(stream, pattern):
    """Lines up to the one that `pattern` is found in; fails when the stream ends before."""
    lines = []
    for line in stream:
        lines.append(line)
        if re.search(pattern, line):
            return lines
    pytest.fail("".join(lines))


def test_an_interrupt_leaves_a_checkpoint_and_no_process_and_the_same_call_resumes(tmp_path, capfd):
    mark, output = uuid.uuid4().hex, tmp_path / "out"
    driver = start_driver(output, mark)
    read_until(driver.stdout, r"step 3/")
    assert len(processes_with(mark)) >= 2
    # As a notebook's server does it: the signal goes to the whole process group of the kernel.
    os.killpg(driver.pid, signal.SIGINT)
    out, err = driver.communicate(timeout=150)
    assert processes_with(mark) == []
    assert "the ranks save a checkpoint and leave" in out and "the same command resumes from it" in out
    assert "KeyboardInterrupt: after step" in err.splitlines()[-1]
    (checkpoint,) = output.glob("checkpoint-*")
    step = int(checkpoint.name.split("-")[1])
    result = launch(
        {**FLAGS, "output_dir": str(output), "max_steps": step + 2}, num_processes=2, plot=False,
        env={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    printed = capfd.readouterr().out
    assert f"resumed from {checkpoint}" in printed and "open        from transformers" in printed
    assert (result.path, result.global_step, result.num_processes) == (output, step + 2, 2)
    state = json.loads((output / "trainer_state.json").read_text())
    assert result.log_history == state["log_history"]
    assert [entry["step"] for entry in result.log_history if "loss" in entry] == list(range(1, step + 3))
    assert result.metrics == json.loads((output / "train_results.json").read_text())
    assert f"{step + 2} on 2 ranks" in str(result) and result._repr_html_().startswith("<table>")
    assert result.plot()._repr_html_().count("<svg") == 3
    again = launch(
        {**FLAGS, "output_dir": str(output), "max_steps": step + 2}, num_processes=2, plot=False,
        env={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert "this run is finished" in capfd.readouterr().out and again == result


class BrokenView:
    """Of a terminal that is gone."""

    is_silent = False

    def show(self, course):
        if course.status.step >= 3:
            raise BrokenPipeError("nobody reads")


@pytest.mark.thorough
def test_an_error_of_the_parent_costs_no_step(tmp_path, monkeypatch):
    mark, output = uuid.uuid4().hex, tmp_path / "out"
    monkeypatch.setattr("fastsft.notebook.launch.view_for", lambda plot: BrokenView())
    flags = {**FLAGS, "output_dir": str(output), "max_steps": 100_000}
    with pytest.raises(BrokenPipeError):
        launch(flags, num_processes=2, env={"OMP_NUM_THREADS": "1", "FASTSFT_TEST_MARK": mark})
    assert processes_with(mark) == []
    (checkpoint,) = output.glob("checkpoint-*")
    assert int(checkpoint.name.split("-")[1]) >= 3 and (checkpoint / "manifest.json").is_file()


def test_output_goes_on_after_a_line_that_looks_like_an_error(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("fastsft.notebook.launch._SECONDS_TO_FAIL", 0.2)
    script = tmp_path / "script.py"
    seen = tmp_path / "seen"
    script.write_text(
        "import pathlib, time\n"
        "print('error: one that is handled', flush=True)\n"
        "time.sleep(0.5)\n"
        "print('and on', flush=True)\n"
        f"seen = pathlib.Path({str(seen)!r})\n"
        "for _ in range(600):\n"
        "    time.sleep(0.05)\n"
        "    if seen.exists(): break\n"
        "else: raise SystemExit(3)\n"
    )
    told = []
    kept = print

    def spy(*words, **options):
        told.extend(words)
        if any("and on" in str(word) for word in words):
            seen.touch()
        kept(*words, **options)

    monkeypatch.setattr("builtins.print", spy)
    launch([], script=script, num_processes=1, plot=False)
    assert any("error: one that is handled" in str(word) for word in told)


@pytest.mark.chaos
def test_ranks_whose_parent_dies_save_and_leave(tmp_path):
    mark, output = uuid.uuid4().hex, tmp_path / "out"
    driver = start_driver(output, mark)
    read_until(driver.stdout, r"step 3/")
    ranks = processes_with(mark)
    driver.kill()
    driver.wait()
    deadline = time.monotonic() + 60
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert ranks and processes_with(mark) == []
    (checkpoint,) = output.glob("checkpoint-*")
    assert (checkpoint / "manifest.json").is_file()


@pytest.mark.chaos
def test_a_second_interrupt_ends_the_ranks_at_once(tmp_path):
    mark = uuid.uuid4().hex
    driver = start_driver(tmp_path, mark)
    read_until(driver.stdout, r"step 3/")
    ranks = [pid for pid in processes_with(mark) if pid != driver.pid]
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)  # stuck: they answer nothing
    os.killpg(driver.pid, signal.SIGINT)
    read_until(driver.stdout, "once more ends them at once")
    began = time.monotonic()
    os.killpg(driver.pid, signal.SIGINT)
    driver.communicate(timeout=30)
    assert time.monotonic() - began < 10 and processes_with(mark) == []


def test_a_mistake_of_the_user_is_a_value_error_told_once(tmp_path, capfd):
    flags = {**FLAGS, "output_dir": str(tmp_path), "data_path": "nowhere.json"}
    with pytest.raises(ValueError, match=r"^--data_path: nowhere\.json"):
        launch(flags, num_processes=1, plot=False)
    assert "error" not in capfd.readouterr().out


SCRIPT = """
import os, pathlib, sys, time
print("words", sys.argv[1:], os.environ["WORLD_SIZE"], flush=True)
spoken = pathlib.Path(__file__).with_suffix(".spoken")
if os.environ["RANK"] == "0":
    spoken.touch()
else:
    for _ in range(6000):
        if spoken.exists():
            break
        time.sleep(0.01)
    try:
        {}["cause"]
    except KeyError as error:
        raise ArithmeticError("the reason") from error
time.sleep(60)
"""


def test_the_traceback_of_the_guilty_rank_and_an_end_for_the_others(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("fastsft.program.rank_processes._SECONDS_TO_NOTICE", 0.5)
    script = tmp_path / "own.py"
    script.write_text(SCRIPT)
    mark = uuid.uuid4().hex
    with pytest.raises(RankFailed) as caught:
        launch(["--a", "b c"], script=script, num_processes=2, env={"FASTSFT_TEST_MARK": mark})
    assert (caught.value.rank, caught.value.status) == (1, 1)
    assert "own.py" in str(caught.value) and str(caught.value).endswith("ArithmeticError: the reason")
    assert caught.value.output.count("Traceback") == 2 and "KeyError: 'cause'" in caught.value.output
    assert capfd.readouterr().out.splitlines() == ["words ['--a', 'b c'] 2"]
    assert processes_with(mark) == []


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (None, {}, "expected arguments"),
        ("--seed 1", {}, "got a string"),
        (["--seed", "1"], {"seed": 1}, "got a string or both"),
        ({"data_path": "-"}, {}, "no standard input"),
        ([], {"script": "nowhere.py"}, "script: expected a Python file, got nowhere.py; "),
        ({"seed": 1}, {"num_processes": -1}, "at least 1"),
        ({"seed": 1}, {"num_processes": 0}, "at least 1, got 0"),
        (
            {"lerning_rate": 1},
            {},
            "unknown name lerning_rate: the nearest known name is learning_rate",
        ),
    ],
)
def test_calls_that_no_rank_could_answer(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        launch(arguments, **options)


def test_places_are_no_arguments():
    """Of launch and train alike."""
    for function in (launch, train):
        with pytest.raises(TypeError, match=r"write \w+\(model_name_or_path=\.\.\., data_path="):
            function("model", "data.json")


def test_number_of_processes(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,3")
    assert default_processes({}) == default_processes([]) == 3
    assert default_processes({"use_cpu": True}) == default_processes(["--seed", "1", "--use-cpu"]) == 1
    assert default_processes(["--no_cuda=True"]) == 1 and default_processes(["--use_cpu", "False"]) == 3
    assert default_processes({"use_cpu": "no"}) == 3 and default_processes({"no_cuda": "yes"}) == 1
    assert default_processes(["--bf16", "maybe"]) == default_processes({"use_cpu": "maybe"}) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert default_processes({}) == 1


def test_number_of_processes_by_files(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,3")
    config, script = tmp_path / "run.json", tmp_path / "own.py"
    config.write_text('{"use_cpu": true}')
    assert default_processes(["--config", str(config)]) == default_processes({"config": config}) == 1
    assert default_processes({"config": config, "use_cpu": False}) == 3
    assert default_processes([], str(script)) == default_processes(["--bf16", "x"], str(script)) == 3
    (tmp_path / "own.args").write_text("--no_cuda")
    assert default_processes([], str(script)) == 1 and default_processes(["--no_cuda=0"], str(script)) == 3


def test_last_words():
    both = "During handling of the above exception, another exception occurred:"
    trace = "Traceback (most recent call last):"
    chain = ["x", trace, "KeyError", "", both, "", trace, "  at", "E"]
    assert last_words(chain) == "\n".join(chain[1:])
    assert last_words([trace, "A", "y", "rank 1: error: b", "c"]) == ("rank 1: error: b\nc")
    assert last_words([str(n) for n in range(30)]) == "\n".join(str(n) for n in range(10, 30))


def test_importing_launch_is_light():
    code = "import sys, fastsft; fastsft.launch; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
