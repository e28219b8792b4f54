"""Switches that a callback sets on one rank take effect on all ranks, with one exchange per step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from transformers import TrainerCallback

from disagreeing_run import items
from fastsft.arguments import TrainingArguments
from fastsft.runtime.launch import launch
from fastsft.trainer import Trainer
from ranks import run_ranks
from saving_run import Conversations
from tiny_models import write_model

EVENTS = ["on_train_begin", "on_epoch_begin", "on_step_begin", "on_substep_end", "on_pre_optimizer_step",
          "on_optimizer_step", "on_step_end", "on_prediction_step", "on_log", "on_evaluate", "on_save",
          "on_epoch_end", "on_train_end"]  # fmt: skip
# Where another rank can hear of it in time.
IN_TIME = [name for name in EVENTS if name not in ("on_substep_end", "on_train_end", "on_prediction_step")]
SWITCHES = ["should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log"]
ALL = (0, 1)


class Setter(TrainerCallback):
    """Sets `switch` on some ranks when `event` comes for the second time, or for the first after step 1."""

    def __init__(self, event: str, switch: str, ranks: tuple[int, ...]) -> None:
        self.event, self.switch, self.ranks = event, switch, ranks
        self.seen: list[tuple[str, int]] = []
        self.is_done = False

    def note(self, event: str, state: Any, control: Any) -> None:
        self.seen.append((event, state.global_step))
        early = event in ("on_train_begin", "on_epoch_begin")
        if event == self.event and not self.is_done and (early or state.global_step > 0):
            self.is_done = True
            if launch().rank in self.ranks:
                setattr(control, self.switch, True)


for _name in EVENTS:
    setattr(
        Setter,
        _name,
        lambda self, args, state, control, _event=_name, **_: self.note(_event, state, control),
    )


def trainer(directory: Path, output: Path, callbacks: Any, **more: Any) -> Trainer:
    flags: dict[str, Any] = {
        "use_cpu": True, "num_train_epochs": 2, "per_device_train_batch_size": 2, "model_max_length": 32,
        "disable_tqdm": True, "plot_loss": False, "report_to": [], "eval_strategy": "steps", "eval_steps": 3,
        "logging_steps": 2, "save_strategy": "steps", "save_steps": 5, "ddp_timeout": 30, **more,
    }  # fmt: skip
    args = TrainingArguments(output_dir=str(output), **flags)
    rows = 4 * launch().world_size * int(more.get("gradient_accumulation_steps", 1)) * 2
    return Trainer(directory, args, train_dataset=items(rows), eval_dataset=items(4), callbacks=callbacks)


def events_of(setter: Setter, directory: Path, output: Path, **more: Any) -> Any:
    try:
        run = trainer(directory, output, [setter], **more)
        run.train()
    except ValueError as error:
        return str(error)
    return setter.seen, sorted(path.name for path in output.glob("checkpoint-*"))


def on_rank(groups: dict[str, str], directory: Path, output: Path, cases: list[Any], more: Any) -> list[Any]:
    return [
        events_of(Setter(*case), directory, output / str(number), **more) for number, case in enumerate(cases)
    ]


def run_of(model: Path, tmp_path: Path, cases: list[Any], **more: Any) -> list[Any]:
    """Return the results of all cases on rank 0, after checking that rank 1 has the same."""
    first, second = run_ranks(2, on_rank, model, tmp_path, cases, more, launched=True, seconds=300)
    assert first == second
    return list(first)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "untied")


@pytest.mark.variants(
    "should_training_stop-on_train_begin",
    "should_save-on_step_begin",
    "should_evaluate-on_pre_optimizer_step",
    "should_log-on_optimizer_step",
    "should_epoch_stop-on_epoch_begin",
)
@pytest.mark.parametrize("event", IN_TIME)
@pytest.mark.parametrize("switch", SWITCHES)
def test_one_rank_is_as_all(model: Path, tmp_path: Path, switch: str, event: str) -> None:
    alone, other, together = run_of(model, tmp_path, [(event, switch, each) for each in ((0,), (1,), ALL)])
    assert alone == other == together
    assert isinstance(alone, tuple), alone


@pytest.mark.parametrize("switch", ["should_training_stop", "should_epoch_stop"])
def test_stops_between_micro_batches_are_refused_on_all_ranks(
    model: Path, tmp_path: Path, switch: str
) -> None:
    (said,) = run_of(model, tmp_path, [("on_substep_end", switch, (1,))], gradient_accumulation_steps=2)
    assert said.startswith(f"control.{switch} is set by Setter at on_substep_end")


@pytest.mark.variants("should_epoch_stop")
@pytest.mark.parametrize("switch", ["should_training_stop", "should_epoch_stop"])
def test_stops_before_a_step_of_several_micro_batches(model: Path, tmp_path: Path, switch: str) -> None:
    """If ranks exchange switches before the step, a stop leaves the step out; otherwise the step is done."""
    events = ["on_train_begin", "on_epoch_begin", "on_step_begin"]
    cases = [(event, switch, ranks) for event in events for ranks in ((0,), (1,), ALL)]
    found = run_of(model, tmp_path, cases, gradient_accumulation_steps=2)
    for number in range(len(events)):
        alone, other, together = found[3 * number : 3 * number + 3]
        assert alone == other == together and isinstance(alone, tuple)
    if switch == "should_training_stop":
        assert [max(step for _, step in seen) for seen, _ in found[::3]] == [0, 0, 2]


class Counter(TrainerCallback):
    """Counts the collectives of this process, and notes the count at the end of each step."""

    def __init__(self) -> None:
        self.count, self.at_ends = 0, list[int]()
        for name in ("all_reduce", "all_gather_object", "broadcast", "broadcast_object_list", "barrier"):
            setattr(dist, name, self.counting(getattr(dist, name)))

    def counting(self, function: Any) -> Any:
        def counted(*args: Any, **keys: Any) -> Any:
            self.count += 1
            return function(*args, **keys)

        return counted

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.at_ends.append(self.count)


def exchanges_on_rank(groups: dict[str, str], directory: Path, output: Path) -> list[int]:
    counter = Counter()
    args = TrainingArguments(
        output_dir=str(output), use_cpu=True, per_device_train_batch_size=1, model_max_length=32,
        disable_tqdm=True, plot_loss=False, report_to=[], save_strategy="no", logging_steps=1, max_steps=4,
    )  # fmt: skip
    Trainer(directory, args, train_dataset=Conversations(), callbacks=[counter]).train()
    return [after - before for before, after in zip(counter.at_ends, counter.at_ends[1:], strict=False)]


def test_one_exchange_a_step(model: Path, tmp_path: Path) -> None:
    """Signals and switches share one exchange, even with a log at every step."""
    for counts in run_ranks(2, exchanges_on_rank, model, tmp_path, launched=True, seconds=120):
        assert counts == [1] * 3
