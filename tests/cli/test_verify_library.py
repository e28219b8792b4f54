"""`fastsft verify` and `fastsft doctor` of models in the words of transformers 4 and 5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from fastsft.cli.verify import verify
from fastsft.doctor.check import FAILED, OK
from fastsft.doctor.model_files import words_read_past, written_by
from fastsft.doctor.verification import library
from fastsft.model.conversion import convert_model
from fastsft.model.engine_choice import open_model
from tiny_models import write_model
from version_words import newer, older

IS_OLDER = int(transformers.__version__.split(".")[0]) < 5


def result_of(directory: Path) -> Any:
    """Of the check that opens the directory by transformers."""
    return next(each for each in verify(directory) if each.name == "transformers")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """In the words of transformers 5 alone, with another base."""
    directory = write_model(tmp_path / "model", "untied")
    config = json.loads((directory / "config.json").read_text())
    for name in ("rope_theta", "rope_scaling", "rope_parameters"):
        config.pop(name, None)
    config["rope_parameters"] = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.skipif(not IS_OLDER, reason="transformers 5 reads these words")
def test_words_that_are_read_past_fail(model: Path) -> None:
    found = result_of(model)
    assert found.mark == FAILED and "rotary frequencies (rope) differ" in found.text
    assert "fastsft convert" in found.way_out


def test_a_converted_model_is_opened_as_it_was_trained(model: Path, tmp_path: Path) -> None:
    convert_model(model, tmp_path / "converted", None, 1 << 30)
    found = result_of(tmp_path / "converted")
    assert found.mark == OK and "same positions, vocabulary and tied weights" in found.text


@pytest.mark.parametrize(("mine", "theirs"), [("untied", "tied"), ("tied", "untied")])
def test_other_ties_are_a_fault(tmp_path: Path, mine: str, theirs: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    own = open_model(str(write_model(tmp_path / mine, mine)))
    other = AutoConfig.from_pretrained(write_model(tmp_path / theirs, theirs))
    (line,) = library.ties_that_differ(AutoModelForCausalLM.from_config(other), own)
    assert ("tied, expected two" if theirs == "tied" else "two, expected tied") in line
    own_config = AutoConfig.from_pretrained(tmp_path / mine)
    assert library.ties_that_differ(AutoModelForCausalLM.from_config(own_config), own) == []


def test_the_release_that_wrote_is_named() -> None:
    text = written_by({"transformers_version": "5.24.0"})
    assert text.startswith("written by transformers 5.24.0")
    assert written_by({}) == "" and written_by({"transformers_version": transformers.__version__})


def test_words_read_past_are_a_line_next_to_the_older_release() -> None:
    lines = [words_read_past(newer(kind, "yarn", None)) for kind in ("llama", "gemma3_text", "qwen2")]
    assert all(("rope_scaling" in line) == IS_OLDER for line in lines)
    assert not any(words_read_past(older(kind, "yarn", None)) for kind in ("llama", "olmo3", "gpt_oss"))
