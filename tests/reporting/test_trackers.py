"""What trackers receive equals what transformers' own callbacks send to them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import fastsft
from fastsft.arguments import TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.callbacks import TrainerControl
from fastsft.callbacks.state import TrainerState
from fastsft.model.model_config import ModelConfig
from fastsft.runtime import messages as notices
from fastsft.trackers import tracker as tracking
from fastsft.trackers.tensorboard import TensorBoardTracker
from fastsft.trackers.tracker import Tracker, number, tracker_names
from saving_run import make_trainer
from tiny_models import write_model

LOGS = [
    (1, {"loss": 2.5, "grad_norm": 0.75, "learning_rate": 1e-05, "epoch": 0.25}),
    (1, {"eval_loss": 2.25, "eval_runtime": 0.5, "epoch": 0.25}),
    (2, {"loss": 2.0, "grad_norm": 0.5, "learning_rate": 5e-06, "epoch": 0.5}),
    (2, {"train_runtime": 3.0, "train_loss": 2.25, "total_flos": 12.0, "epoch": 0.5}),
]
MODEL = types.SimpleNamespace(config=ModelConfig(hidden_size=8, model_type="llama"), num_parameters=lambda: 7)
PACKAGE = Path(fastsft.__file__).parents[1]


def play(callback, args):
    """A run of two steps, as a trainer tells it."""
    state, control = TrainerState(max_steps=2), TrainerControl()
    callback.on_train_begin(args, state, control, model=MODEL)
    for step, logs in LOGS:
        state.global_step = step
        callback.on_log(args, state, control, logs=dict(logs), model=MODEL)
    callback.on_train_end(args, state, control, model=MODEL)


def scalars_and_texts(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory)).Reload()
    scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    texts = {
        tag: [e.tensor_proto.string_val[0] for e in events.Tensors(tag)] for tag in events.Tags()["tensors"]
    }
    return scalars, texts


def test_steps_after_a_crash_are_in_tensorboard_once(tmp_path):
    """A run logs up to step 4, and is resumed from a checkpoint of step 2."""
    pytest.importorskip("tensorboard")
    args = TrainingArguments(output_dir=str(tmp_path), logging_dir=str(tmp_path / "events"))
    for begin, end, loss in ((0, 4, 9.0), (2, 6, 1.0)):
        tracker, state, control = TensorBoardTracker(), TrainerState(max_steps=6), TrainerControl()
        state.global_step = begin
        tracker.on_train_begin(args, state, control, model=MODEL)
        for step in range(begin + 1, end + 1):
            state.global_step = step
            tracker.on_log(args, state, control, logs={"loss": loss}, model=MODEL)
        tracker.stop()
    scalars, _ = scalars_and_texts(tmp_path / "events")
    assert scalars["train/loss"] == [(1, 9), (2, 9), (3, 1), (4, 1), (5, 1), (6, 1)]


def test_tensorboard_files_equal_those_of_transformers(tmp_path):
    pytest.importorskip("tensorboard")
    from transformers.integrations import TensorBoardCallback

    args = TrainingArguments(output_dir=str(tmp_path), logging_dir=str(tmp_path / "events"))
    play(TensorBoardTracker(), args)
    ours = scalars_and_texts(tmp_path / "events")
    args.logging_dir = str(tmp_path / "theirs")
    play(TensorBoardCallback(), args)
    theirs = scalars_and_texts(tmp_path / "theirs")
    assert ours[0] == theirs[0] and ours[0]["train/loss"] == [(1, 2.5), (2, 2.0)]
    assert ours[0]["eval/loss"] == [(1, 2.25)]
    assert ours[1].keys() == theirs[1].keys() == {"args/text_summary", "model_config/text_summary"}
    assert ours[1]["model_config/text_summary"] == theirs[1]["model_config/text_summary"]


def test_values_without_a_place_are_left_out(tmp_path, monkeypatch, caplog):
    """transformers drops them from TensorBoard, and logs on."""
    pytest.importorskip("tensorboard")
    from transformers.integrations import TensorBoardCallback

    monkeypatch.setattr(notices, "_said", set())
    args, told = TrainingArguments(output_dir=str(tmp_path)), []
    for kind in (TensorBoardTracker, TensorBoardCallback):
        args.logging_dir = str(tmp_path / kind.__name__)
        callback, state, control = kind(), TrainerState(max_steps=2), TrainerControl()
        callback.on_train_begin(args, state, control, model=MODEL)
        for state.global_step in (1, 2):
            logs = {"eval_per_class": [0.1, 0.2], "eval_none": None, "eval_acc": 0.5, "eval_all": {"a": 1}}
            callback.on_log(args, state, control, logs=logs, model=MODEL)
        callback.on_train_end(args, state, control, model=MODEL)
        told.append(scalars_and_texts(args.logging_dir)[0])
    assert told[0] == told[1] == {"eval/acc": [(1, 0.5), (2, 0.5)]}
    assert [record.getMessage() for record in caplog.records if record.name == "fastsft"] == [
        f"--report_to tensorboard: eval/{name}: expected a number or a text, got {kind}; it is not sent there"
        for name, kind in (("per_class", "list"), ("none", "NoneType"), ("all", "dict"))
    ]


def test_numbers():
    values = [1, 0.5, np.float32(0.25), torch.tensor([2.0]), np.ones(2), torch.ones(2), "x", None, [1.0]]
    assert [number(value) for value in values] == [1, 0.5, 0.25, 2.0, None, None, None, None, None]


def test_default_directory_of_event_files(tmp_path, monkeypatch):
    from transformers.training_args import default_logdir

    args = TrainingArguments(output_dir=str(tmp_path))
    ours, theirs = Path(args.logging_dir), Path(default_logdir())
    assert ours.parent == tmp_path / theirs.parent
    assert (ours.name[:6], ours.name[15:]) == (theirs.name[:6], theirs.name[15:])
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "/elsewhere")
    assert TrainingArguments(output_dir=str(tmp_path)).logging_dir == "/elsewhere"


class Recorder(types.ModuleType):
    """Stands for a tracker's library and keeps every call."""

    def __init__(self, name):
        super().__init__(name)
        self.calls, self.run, self.config, self.summary = [], None, {}, {}

    def init(self, **options):
        assert self.run is None
        self.calls.append(("init", options))
        self.run = types.SimpleNamespace(summary=self.summary, _label=lambda **_: None)
        self.config = Config()

    def define_metric(self, *words, **options):
        self.calls.append(("define_metric", words, options))

    def log(self, values):
        self.calls.append(("log", values))

    def finish(self, exit_code=0):
        self.calls.append(("finish", exit_code))
        self.run = None


class Config(dict):
    def update(self, values, allow_val_change):
        super().update(values)


def test_wandb_is_told_what_transformers_tells_it(tmp_path, monkeypatch):
    from transformers.integrations import integration_utils as original

    args = TrainingArguments(output_dir=str(tmp_path), run_name="one")
    told = []
    for kind in ("ours", "theirs"):
        library = Recorder("wandb")
        library.termwarn = print
        sdk = types.ModuleType("wandb.sdk.lib.config_util")
        sdk.ConfigError = RuntimeError
        for name, module in {"wandb": library, "wandb.sdk": sdk, "wandb.sdk.lib": sdk}.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setitem(sys.modules, "wandb.sdk.lib.config_util", sdk)
        if kind == "ours":
            play(tracking.trackers()["wandb"](), args)
        else:
            monkeypatch.setattr(original, "is_wandb_available", lambda: True)
            play(original.WandbCallback(), args)
        told.append((library.calls, dict(library.config), library.summary))
    assert told[0] == told[1]
    assert told[0][0][0] == ("init", {"project": "huggingface", "name": "one"})


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    """wandb's library, trackers of it, and what it was told: runs, their ends, values."""
    library = Recorder("wandb")
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setattr(Tracker, "_current", {})
    library.args = TrainingArguments(output_dir=str(tmp_path), run_name="one")
    library.tracker = lambda: tracking.trackers()["wandb"]()
    library.told = lambda: [
        call[1] if call[0] == "log" else call[0] if call[0] == "init" else call
        for call in library.calls
        if call[0] != "define_metric"
    ]

    def fire(tracker, event, **values):
        state = TrainerState(max_steps=2, global_step=1)
        getattr(tracker, event)(library.args, state, TrainerControl(), model=MODEL, logs=values)

    library.fire = fire
    return library


def logged(**values):
    return {**{name.replace("_", "/", 1): value for name, value in values.items()}, "train/global_step": 1}


def test_an_evaluation_after_a_training_is_in_its_run(wandb):
    """As with transformers, which finishes no run; a second training of the Trainer goes on in it, too."""
    tracker = wandb.tracker()
    for event in ("on_train_begin", "on_train_end", "on_log", "on_train_begin", "on_train_end"):
        wandb.fire(tracker, event, eval_loss=1.0)
    assert wandb.told() == ["init", logged(eval_loss=1.0)] and wandb.run is not None


def test_another_trainer_has_a_run_of_its_own(wandb):
    first, second = wandb.tracker(), wandb.tracker()
    for event in ("on_train_begin", "on_train_end"):
        wandb.fire(first, event)
    wandb.fire(second, "on_train_begin")
    wandb.fire(second, "on_log", eval_loss=2.0)
    assert wandb.told() == ["init", ("finish", 0), "init", logged(eval_loss=2.0)]


def test_another_trainer_that_evaluates_in_the_middle_ends_no_run(wandb):
    first, second = wandb.tracker(), wandb.tracker()
    wandb.fire(first, "on_train_begin")
    wandb.fire(second, "on_log", eval_loss=2.0)
    wandb.fire(first, "on_log", eval_loss=1.0)
    assert wandb.told() == ["init", logged(eval_loss=2.0), logged(eval_loss=1.0)]


def test_a_training_that_fails_ends_its_run(wandb):
    first, second = wandb.tracker(), wandb.tracker()
    wandb.fire(first, "on_train_begin")
    wandb.fire(first, "on_train_stopped")
    wandb.fire(second, "on_train_begin")
    assert wandb.told() == ["init", ("finish", 1), "init"]


def test_runs_of_the_script_are_left_open(wandb):
    """Also one that it began after it had finished that of a training."""
    first, second = wandb.tracker(), wandb.tracker()
    wandb.fire(first, "on_train_begin")
    wandb.fire(first, "on_train_end")
    wandb.finish()
    wandb.init()
    wandb.fire(second, "on_train_begin")
    wandb.fire(second, "on_train_stopped")
    assert wandb.told() == ["init", ("finish", 0), "init"]
    wandb.finish()
    wandb.fire(first, "on_log", eval_loss=1.0)
    assert wandb.told()[3:] == [("finish", 0), "init", logged(eval_loss=1.0)]


def test_a_trainer_tells_its_trackers_that_it_failed(wandb, tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "is_installed", lambda kind: True)

    class Fails(fastsft.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            raise RuntimeError("of the script")

    trainer = make_trainer(write_model(tmp_path / "model", "untied"), tmp_path / "out", report_to="wandb")
    trainer.add_callback(Fails())
    with pytest.raises(RuntimeError, match="of the script"):
        trainer.train()
    assert wandb.told() == ["init", ("finish", 1)]


def run_script(code, tmp_path, **env):
    script = tmp_path / "script.py"
    script.write_text(code)
    tests = Path(__file__).parent
    paths = os.pathsep.join(map(str, [PACKAGE, tests, tests.parent / "support"]))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": paths, **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


PLAY = """
import json
import test_trackers
from fastsft.arguments import TrainingArguments
from fastsft.trackers.tracker import make_trackers, resolve_trackers
args = TrainingArguments(output_dir="out", run_name="one", report_to="NAME")
test_trackers.play(*make_trackers(args.report_to), args)
"""


def needs(library):
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


@needs("wandb")
def test_wandb_offline(tmp_path):
    run_script(
        PLAY.replace("NAME", "wandb"), tmp_path, WANDB_MODE="offline", WANDB_SILENT="true", HOME=str(tmp_path)
    )
    (written,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    content = written.read_bytes()
    assert all(name in content for name in (b"train/loss", b"eval/loss", b"train/global_step"))


READ_MLFLOW = """
import mlflow
client = mlflow.MlflowClient()
(run,) = client.search_runs(["0"])
points = {name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
          for name in run.data.metrics}
print(json.dumps([points, run.data.params, run.info.run_name, run.info.status]))
"""


EVALUATE_LATER = """
import mlflow
from fastsft.callbacks import TrainerControl
from fastsft.callbacks.state import TrainerState
assert mlflow.active_run() is None
(tracker,) = make_trackers(args.report_to)
test_trackers.play(tracker, args)
with mlflow.start_run():  # the script's own
    pass
tracker.on_log(args, TrainerState(global_step=2), TrainerControl(), logs={"eval_later": 7.0})
assert mlflow.active_run() is None
tracker.on_train_begin(args, TrainerState(), TrainerControl())
tracker.on_train_stopped(args, TrainerState(), TrainerControl())
assert mlflow.active_run() is None
client = mlflow.MlflowClient()
runs = client.search_runs(["0"])
print(json.dumps([[run.info.status, run.data.metrics.get("eval_later")] for run in runs]))
"""


@needs("mlflow")
def test_mlflow_run_ends_with_the_training_and_takes_later_evaluations(tmp_path):
    code = PLAY.replace("NAME", "mlflow") + EVALUATE_LATER
    output = run_script(code, tmp_path, MLFLOW_TRACKING_URI=f"file://{tmp_path}/runs")
    runs = json.loads(output.splitlines()[-1])
    assert sorted(runs, key=str) == [
        ["FAILED", None], ["FINISHED", 7.0], ["FINISHED", None], ["FINISHED", None],
    ]  # fmt: skip


@needs("mlflow")
@pytest.mark.parametrize("uri", [None, "file:runs", "file://{}/runs", "{}/runs"])
def test_mlflow_without_a_server(tmp_path, uri):
    """Without a URI, the store is the library's own database, or for mlflow-skinny the directory mlruns."""
    code = PLAY.replace("NAME", "mlflow") + READ_MLFLOW
    output = run_script(code, tmp_path, **({"MLFLOW_TRACKING_URI": uri.format(tmp_path)} if uri else {}))
    points, params, name, status = json.loads(output.splitlines()[-1])
    assert points["loss"] == [[1, 2.5], [2, 2.0]] and points["eval_loss"] == [[1, 2.25]]
    assert points["train_loss"] == [[2, 2.25]]
    assert (params["hidden_size"], params["output_dir"]) == ("8", "out")
    assert (name, status) == ("one", "FINISHED")


@needs("mlflow")
@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        (
            "file:///proc/x",
            "MLFLOW_TRACKING_URI file:///proc/x: expected a directory to write into, got in /proc",
        ),
        ("/proc/1/x", "MLFLOW_TRACKING_URI /proc/1/x: expected a directory to write into"),
        (
            "http://localhost:9",
            "expected a server at http://localhost:9, got: Connection refused; start it, or",
        ),
        ("https://nowhere.invalid", "expected a server at https://nowhere.invalid, got: "),
    ],
)
def test_mlflow_refuses_a_store_before_the_run(uri, expected, tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(mlflow, "get_tracking_uri", lambda: uri)
    for name in (
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "no_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=re.escape(expected)):
        tracking.check_trackers("mlflow", TrainingArguments(output_dir=str(tmp_path)))


def test_names():
    assert tracker_names({"eval_loss": 1, "test_x": 2, "loss": 3, "train_loss": 4}) == {
        "eval/loss": 1, "test/x": 2, "train/loss": 3, "train/train_loss": 4,
    }  # fmt: skip


def test_report_to(monkeypatch, caplog):
    monkeypatch.setattr(notices, "_said", set())
    assert tracking.resolve_trackers(None) == tracking.resolve_trackers(["none"]) == []
    with pytest.raises(ValueError, match="expected none, mlflow, tensorboard, wandb or all, got comet"):
        tracking.resolve_trackers("comet")
    monkeypatch.setattr(tracking, "is_installed", lambda kind: kind.name != "wandb")
    assert tracking.resolve_trackers("all") == ["mlflow", "tensorboard"]
    assert tracking.missing_trackers() == ["wandb"]
    assert caplog.messages == ["--report_to all: not installed, and left out: wandb; pip install wandb"]
    with pytest.raises(ValueError, match=r"wandb is not installed; pip install wandb, or leave wandb out"):
        TrainingArguments(output_dir="o", report_to="wandb")


SEVERAL = {
    "words": ["--report_to", "tensorboard", "mlflow"],
    "comma": ["--report_to", "tensorboard,mlflow"],
    "comma and space": ["--report_to", "tensorboard, mlflow"],
    "quoted": ["--report_to=tensorboard mlflow"],
    "json": ["--report_to", '["tensorboard", "mlflow"]'],
    "words with commas": ["--report_to", "tensorboard,", "mlflow"],
    "twice the same": ["--report_to", "tensorboard", "mlflow", "tensorboard"],
}


def installed(monkeypatch):
    monkeypatch.setattr(tracking, "is_installed", lambda kind: True)


@pytest.mark.parametrize("words", SEVERAL.values(), ids=list(SEVERAL))
def test_several_trackers_on_a_command_line(words, tmp_path, monkeypatch):
    installed(monkeypatch)
    parse = DataclassParser(TrainingArguments).parse_args_into_dataclasses
    (args,) = parse(["--output_dir", str(tmp_path), *words, "--seed", "3"])
    assert (args.report_to, args.seed) == (["tensorboard", "mlflow"], 3)


@pytest.mark.parametrize(
    "line",
    ["[tensorboard, mlflow]", "tensorboard, mlflow", "tensorboard mlflow", "\n- tensorboard\n- mlflow"],
)
def test_several_trackers_in_a_file(line, tmp_path, monkeypatch):
    installed(monkeypatch)
    (file := tmp_path / "run.yaml").write_text(
        f"report_to: {line}\noutput_dir: o\nfsdp: full_shard auto_wrap\n"
    )
    parser = DataclassParser(TrainingArguments)
    (args,) = parser.parse_args_into_dataclasses(["--config", str(file)])
    assert args.report_to == ["tensorboard", "mlflow"] and args.fsdp == ["full_shard", "auto_wrap"]
    (args,) = parser.parse_args_into_dataclasses(["--config", str(file), "--report_to", "wandb"])
    assert args.report_to == ["wandb"]


def test_an_unknown_tracker_among_several_is_named(monkeypatch):
    installed(monkeypatch)
    with pytest.raises(ValueError, match="expected none, mlflow, tensorboard, wandb or all, got trackio"):
        TrainingArguments(output_dir="o", report_to="wandb,trackio")
    assert TrainingArguments(output_dir="o", report_to="none").report_to == []


@pytest.mark.parametrize("words", [["tensorboard,mlflow"], ["tensorboard", "mlflow"], ["tensorboard mlflow"]])
def test_the_parser_of_transformers_takes_several_too(words, tmp_path, monkeypatch):
    installed(monkeypatch)
    line = ["--output_dir", str(tmp_path), "--report_to", *words, "--seed", "3"]
    (args,) = transformers.HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(line)
    assert (args.report_to, args.seed) == (["tensorboard", "mlflow"], 3)


class Broken(Tracker):
    name = library = "broken"

    def open(self, args, state, model):
        self.calls = 0

    def log(self, logs, step):
        self.calls += 1
        raise OSError("no route to host")

    def close(self, *, failed):
        raise OSError("still none")


def test_a_tracker_that_fails_later_does_not_end_the_run(caplog):
    tracker = Broken()
    play(tracker, TrainingArguments(output_dir="o"))
    assert tracker.calls == 1
    assert [record.getMessage() for record in caplog.records] == [
        "--report_to broken: switched off, training goes on: OSError: no route to host"
    ]


def test_a_tracker_that_cannot_begin_ends_the_run_with_one_line():
    class Refused(Broken):
        def open(self, args, state, model):
            raise ConnectionError("refused\nby the server")

    with pytest.raises(ValueError) as raised:
        play(Refused(), TrainingArguments(output_dir="o"))
    assert str(raised.value) == (
        "--report_to broken: expected to begin a run, got ConnectionError: refused by the server; correct "
        "the settings of broken, or leave it out of --report_to"
    )


def test_other_ranks_stay_silent(tmp_path):
    state = TrainerState(is_world_process_zero=False)
    tracker = Broken()
    tracker.on_train_begin(TrainingArguments(output_dir="o"), state, TrainerControl(), model=MODEL)
    tracker.on_log(None, state, TrainerControl(), logs={"loss": 1.0})
    assert not hasattr(tracker, "calls")
