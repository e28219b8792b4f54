"""A chat template that asks for the date: a run that goes on another day has the labels of its begin."""

from __future__ import annotations

import datetime
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from family_models import TEMPLATES, write_family
from fastsft.tokenizer import Tokenizer
from fastsft.train import DataArguments, make_supervised_data_module, train
from golden_text import human_gpt

BEGIN, LATER = "2026-02-27", "2026-03-02"


@pytest.fixture
def flags(tmp_path: Path) -> dict[str, Any]:
    """Of Llama 3.2, whose template writes the date into every conversation."""
    model = write_family(tmp_path / "model", "llama3")
    shutil.copyfile(TEMPLATES / "llama-3.2.jinja", model / "chat_template.jinja")
    records = [{"conversations": human_gpt(f"Hello {i}?", "Hi there.")} for i in range(8)]
    (tmp_path / "data.json").write_text(json.dumps(records))
    return {
        "model_name_or_path": str(model), "data_path": str(tmp_path / "data.json"),
        "output_dir": str(tmp_path / "out"), "per_device_train_batch_size": 2, "model_max_length": 256,
        "num_train_epochs": 1, "save_steps": 2, "use_cpu": True, "report_to": "none", "data_cache": "none",
        "plot_loss": False,
    }  # fmt: skip


def on(patch: pytest.MonkeyPatch, day: str) -> None:
    class Date(datetime.date):
        @classmethod
        def today(cls) -> datetime.date:
            return cls.fromisoformat(day)

    patch.setattr("fastsft.data.chat.model_template.date", Date)


def date_in(flags: dict[str, Any]) -> str:
    return str(
        json.loads(Path(flags["output_dir"], "data_report.json").read_text())["train"]["template_date"]
    )


def test_a_run_goes_on_another_day(
    flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on(monkeypatch, BEGIN)
    train({**flags, "max_steps": 2})
    assert date_in(flags) == BEGIN
    on(monkeypatch, LATER)
    train({**flags, "max_steps": 4})
    said = capsys.readouterr().out
    assert "checkpoint-2: step 2 of 4" in said and said.count(f"strftime_now gives {BEGIN}") == 2
    assert date_in(flags) == BEGIN
    train({**flags, "max_steps": 4})
    assert "this run is finished: step 4 of 4" in capsys.readouterr().out
    shutil.rmtree(Path(flags["output_dir"]))
    train({**flags, "max_steps": 2})
    assert date_in(flags) == LATER


def test_a_day_that_is_named(flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, LATER)
    train({**flags, "max_steps": 2, "template_date": "2024-07-26"})
    assert date_in(flags) == "2024-07-26"
    told = r"with --template_date 2024-07-26, now it is 2026-02-27; resume with --template_date 2024-07-26"
    with pytest.raises(ValueError, match=told):
        train({**flags, "max_steps": 4, "template_date": BEGIN})
    train({**flags, "max_steps": 4})
    assert date_in(flags) == "2024-07-26"
    with pytest.raises(ValueError, match="--template_date: expected a day such as 2026-11-26, got '26 Jul'"):
        train({**flags, "template_date": "26 Jul"})


def test_records_that_are_labelled_again_keep_the_day(
    flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a lazy data set that a script edits after midnight."""
    on(monkeypatch, BEGIN)
    tokenizer = Tokenizer.from_pretrained(flags["model_name_or_path"], model_max_length=256)
    given = DataArguments(flags["data_path"], lazy_preprocess=True, mask_policy="spans", data_cache="none")
    made = make_supervised_data_module(tokenizer, given)["train_dataset"]
    first = made[0]["input_ids"].tolist()
    on(monkeypatch, LATER)
    made.raw_data = list(made.raw_data)
    made.cached_data_dict = {}
    assert made[0]["input_ids"].tolist() == first


@pytest.mark.variants("soon", "[[]]")
@pytest.mark.parametrize("spoiled", ["{", "[]", '{"template_date": 3}', '{"template_date": "soon"}'])
def test_a_record_that_is_spoiled_is_left_to_the_resume(
    flags: dict[str, Any], spoiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, BEGIN)
    train({**flags, "max_steps": 2})
    (Path(flags["output_dir"]) / "checkpoint-2" / "fastsft_state.json").write_text(spoiled)
    (Path(flags["output_dir"]) / "fastsft_finished.json").unlink()
    with pytest.raises(ValueError, match=r"checkpoint-2"):
        train({**flags, "max_steps": 4})


def test_a_date_that_no_template_asks_for(flags: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    named: dict[str, Any] = {**flags, "template": "vicuna_v1.1", "mask_policy": "spans", "max_steps": 1}
    with pytest.raises(ValueError, match="expected a day such as 2026-11-26, got 'tomorrow'"):
        train(**named, template_date="tomorrow")
    train(**named, template_date=BEGIN)
    assert f"--template_date {BEGIN}: no effect, the template asks for no date" in caplog.text
