"""States of wrong types under valid checksums: an older checkpoint is taken, or file and key are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastsft import saving
from planted import reseal
from saved_runs import copy
from saving_run import make_trainer

DEEP = "[" * 100_000 + "]" * 100_000
RUN, TRAINER = "fastsft_state.json", "trainer_state.json"


@pytest.fixture
def model(models: dict[str, Path]) -> Path:
    return models["untied"]


class Gone:
    """The key is taken out."""


EDITS: list[tuple[str, dict[str, Any]]] = [
    (RUN, {"step": "4"}),
    (RUN, {"optimizer_step": "4"}),
    (RUN, {"optimizer_step": 10**30}),
    (RUN, {"optimizer_step": True}),
    (RUN, {"batch": None}),
    (RUN, {"batch": {"global": 4}}),
    (RUN, {"position": "x"}),
    (RUN, {"position": {"epoch": -1, "conversations": 0}}),
    (RUN, {"micro_batch_tokens": "x"}),
    (RUN, {"bad_steps": [1]}),
    (RUN, {"bad_steps": {"left_out": [[1]]}}),
    (RUN, {"bad_steps": {"recent_losses": ["x"]}}),
    (RUN, {"due": [1]}),
    (RUN, {"due": "x"}),
    (RUN, {"due": {"evaluate": "x"}}),
    (RUN, {"due": {"__class__": 1}}),
    (RUN, {"due": {"log_entries": -5}}),
    (RUN, {"batch": Gone}),
    (RUN, {"step": Gone}),
    (RUN, {"position": Gone}),
    (RUN, {"format_version": [2]}),
    (TRAINER, {"log_history": "x"}),
    (TRAINER, {"log_history": [1, 2]}),
    (TRAINER, {"log_history": [{"step": "x"}]}),
    (TRAINER, {"log_history": [{"step": 1, "epoch": "x"}]}),
    (TRAINER, {"global_step": 2**70}),
    (TRAINER, {"global_step": "4"}),
    (TRAINER, {"epoch": "x"}),
    (TRAINER, {"best_model_checkpoint": []}),
    (TRAINER, {"total_flos": "x"}),
    (TRAINER, {"stateful_callbacks": {"A": {"args": 1}}}),
    (TRAINER, {"a key of nobody": 1}),
]


def edit(path: Path, changes: dict[str, Any]) -> None:
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not Gone}))


def spoil(checkpoint: Path, name: str, changes: dict[str, Any] | str) -> None:
    if isinstance(changes, str):
        (checkpoint / name).write_text(changes)
    else:
        edit(checkpoint / name, changes)
    reseal(checkpoint)


@pytest.mark.parametrize("case", range(len(EDITS)))
def test_an_older_checkpoint_is_taken(finished: Path, tmp_path: Path, case: int, caplog: Any) -> None:
    name, changes = EDITS[case]
    output = copy(finished, tmp_path, 2, 4)
    spoil(output / "checkpoint-4", name, changes)
    assert saving.newest_checkpoint(output) == str(output / "checkpoint-2")
    (record,) = caplog.records
    assert "checkpoint-4 cannot be used: " in record.getMessage() and name in record.getMessage()


@pytest.mark.parametrize("name", [RUN, TRAINER])
@pytest.mark.parametrize(
    "text", [DEEP, "[]", "nothing", "", "\ud800".encode("utf-8", "surrogatepass").decode("latin")]
)
def test_what_is_no_object(model: Path, finished: Path, tmp_path: Path, name: str, text: str) -> None:
    """By name a ValueError names the file; alone in the directory it is the reason that is given."""
    output = copy(finished, tmp_path, 4)
    spoil(output / "checkpoint-4", name, text)
    with pytest.raises(ValueError, match=name):
        saving.load_checkpoint(make_trainer(model, tmp_path / "other"), output / "checkpoint-4")
    with pytest.raises(ValueError, match="none can be used"):
        saving.newest_checkpoint(output)


@pytest.mark.parametrize("key", ["numpy", "python", "torch"])
def test_hostile_random_states_are_a_clear_error(
    model: Path, finished: Path, tmp_path: Path, key: str
) -> None:
    import base64
    import zlib

    hostile = {
        "numpy": ["MT19937", [-1] * 624, 0, 0, 0.0],
        "python": [3, [], None],
        "torch": base64.b64encode(zlib.compress(bytes(1 << 30), 9)).decode() if key == "torch" else "",
    }
    output = copy(finished, tmp_path, 4)
    spoil(output / "checkpoint-4", "random-state-rank-00000.json", {key: hostile[key]})
    with pytest.raises(ValueError, match=r"random-state-rank-00000.json: not the random states"):
        saving.load_checkpoint(make_trainer(model, tmp_path / "other"), output / "checkpoint-4")


def test_the_edits_are_what_is_found(finished: Path, tmp_path: Path) -> None:
    """The same with no change: the checkpoint is taken."""
    output = copy(finished, tmp_path, 4)
    spoil(output / "checkpoint-4", RUN, {})
    spoil(output / "checkpoint-4", TRAINER, {})
    assert saving.newest_checkpoint(output) == str(output / "checkpoint-4")
