"""Events, state and switches that a callback sees, beside those of transformers' own Trainer."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import transformers

from fastsft.arguments import TrainingArguments
from fastsft.trainer import Trainer
from padded_items import WIDTH, random_items
from tiny_models import write_model

EVENTS = [name for name in dir(transformers.TrainerCallback) if name.startswith("on_")]
COMMON = {
    "use_cpu": True, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 3, "save_strategy": "no",
    "gradient_accumulation_steps": 2, "logging_steps": 1, "disable_tqdm": True, "report_to": "none",
}  # fmt: skip
# Seven rows: four micro-batches and two steps an epoch.
RUNS: dict[str, dict[str, Any]] = {
    "steps": {
        "max_steps": 3, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2,
    },
    "epochs": {
        "num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch",
        "logging_strategy": "epoch",
    },
    "evaluation first": {
        "max_steps": 2, "eval_on_start": True, "logging_first_step": True, "logging_steps": 5,
    },
    "uneven groups": {"num_train_epochs": 1, "gradient_accumulation_steps": 3},
    "nothing": {"max_steps": 1, "logging_strategy": "no"},
}  # fmt: skip


class Recorder(transformers.TrainerCallback):
    """Records what each event shows. stop: the step after which the run is stopped, or None."""

    def __init__(self, stop: int | None = None) -> None:
        self.seen: list[Any] = []
        self.stop = stop

    def note(self, name: str, state: Any, control: Any, given: dict[str, Any]) -> None:
        self.seen.append((name, state.global_step, state.epoch, asdict(control), sorted(given["logs"] or ())))
        if name == "on_step_end" and state.global_step == self.stop:
            control.should_training_stop = True


def _listener(name: str) -> Any:
    def listen(self: Recorder, args: Any, state: Any, control: Any, **given: Any) -> None:
        shown = {"logs": given.get("logs") or given.get("metrics")}
        assert given["model"] is not None or name == "on_init_end"
        self.note(name, state, control, shown)

    return listen


for event in EVENTS:
    setattr(Recorder, event, _listener(event))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("order") / "model", "untied")


def theirs(model: Path, output: Path, flags: dict[str, Any], recorder: Recorder) -> None:
    args = transformers.TrainingArguments(str(output), **{**COMMON, **flags})
    trainer = transformers.Trainer(
        transformers.LlamaForCausalLM.from_pretrained(model), args, callbacks=[recorder],
        data_collator=transformers.default_data_collator, train_dataset=random_items(),
        eval_dataset=random_items(),
    )  # fmt: skip
    trainer.train()
    trainer.predict(random_items())


def ours(model: Path, output: Path, flags: dict[str, Any], recorder: Recorder) -> None:
    given = {**COMMON, "plot_loss": False, "model_max_length": WIDTH, **flags}
    rows = random_items()
    trainer = Trainer(
        str(model), TrainingArguments(str(output), **given), train_dataset=rows, eval_dataset=rows,
        callbacks=[recorder],
    )  # fmt: skip
    trainer.train()
    trainer.predict(rows)


SHORT = ("steps", "epochs")
CASES = [pytest.param(name, None, marks=() if name in SHORT else pytest.mark.chaos) for name in RUNS]
STOPS = [pytest.param("epochs", 2), pytest.param("steps", 1, marks=pytest.mark.chaos)]  # 2: an epoch's last


@pytest.mark.parametrize(("name", "stop"), [*CASES, *STOPS])
def test_events_are_those_of_transformers(model: Path, tmp_path: Path, name: str, stop: int | None) -> None:
    recorders = Recorder(stop), Recorder(stop)
    theirs(model, tmp_path / "theirs", RUNS[name], recorders[0])
    ours(model, tmp_path / "ours", RUNS[name], recorders[1])
    wanted, seen = (recorder.seen for recorder in recorders)
    assert [entry[0] for entry in seen] == [entry[0] for entry in wanted]
    for entry, other in zip(seen, wanted, strict=True):
        assert entry == other


class Stopping(Recorder):
    """Sets `switch` when `event` comes for the second time, or for the first if it comes only once."""

    def __init__(self, event: str, switch: str) -> None:
        super().__init__()
        self.event, self.switch = event, switch
        self.left = 1 if event == "on_train_begin" else 2

    def note(self, name: str, state: Any, control: Any, given: dict[str, Any]) -> None:
        super().note(name, state, control, given)
        self.left -= name == self.event
        if name == self.event and self.left == 0:
            setattr(control, self.switch, True)


@pytest.mark.parametrize(
    ("event", "switch"),
    [("on_train_begin", "should_training_stop"), ("on_epoch_begin", "should_training_stop"),
     ("on_step_begin", "should_training_stop"), ("on_epoch_begin", "should_epoch_stop"),
     ("on_step_begin", "should_epoch_stop")],
)  # fmt: skip
def test_a_stop_before_a_step_leaves_it(model: Path, tmp_path: Path, event: str, switch: str) -> None:
    flags = {"num_train_epochs": 3, "logging_steps": 1}
    recorders = Stopping(event, switch), Stopping(event, switch)
    theirs(model, tmp_path / "theirs", flags, recorders[0])
    ours(model, tmp_path / "ours", flags, recorders[1])
    assert recorders[1].seen == recorders[0].seen
    assert "on_substep_end" in [entry[0] for entry in recorders[0].seen]
