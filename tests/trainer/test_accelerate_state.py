"""Settings of accelerate that outlive the arguments of a script are refused if transformers follows them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import accelerate
import pytest
import transformers
from accelerate.state import AcceleratorState

import fastsft
from trainer_pairs import FLAGS, Plain, losses, model, ours, theirs


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(os.environ, "ACCELERATE_MIXED_PRECISION", "no")
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_the_number_format_of_earlier_arguments(tmp_path: Path) -> None:
    transformers.TrainingArguments(str(tmp_path), bf16=True, **FLAGS)
    other = theirs(tmp_path, Plain())
    assert other.accelerator.mixed_precision == "bf16" and not other.args.bf16
    with pytest.raises(ValueError, match=r"computes? in bf16; give bf16=True"):
        ours(tmp_path, Plain())


def test_the_message_of_earlier_arguments_has_the_way_out(tmp_path: Path) -> None:
    transformers.TrainingArguments(str(tmp_path), bf16=True, **FLAGS)
    later = transformers.TrainingArguments(str(tmp_path), **FLAGS)
    with pytest.raises(ValueError, match=r"an earlier TrainingArguments\(bf16=True\) of this") as caught:
        fastsft.Trainer(model(), later, transformers.default_data_collator, Plain())
    (way_out,) = re.findall(r"os\.environ\.pop\(.*?\)", str(caught.value))
    eval(way_out)
    trainer = fastsft.Trainer(model(), later, transformers.default_data_collator, Plain())
    assert len(losses(trainer)) == 8


def test_the_number_format_of_earlier_arguments_of_fastsft(tmp_path: Path) -> None:
    """With transformers' arguments the same script computes in bf16, which accelerate keeps."""
    earlier = fastsft.TrainingArguments(str(tmp_path), bf16=True, **FLAGS)
    later = fastsft.TrainingArguments(str(tmp_path), **FLAGS)
    with pytest.raises(ValueError, match=r"earlier TrainingArguments of this process have bf16=True"):
        fastsft.Trainer(model(), later, None, Plain())
    assert len(losses(fastsft.Trainer(model(), earlier, None, Plain()))) == 8


def test_the_number_format_of_an_accelerator(tmp_path: Path) -> None:
    args = transformers.TrainingArguments(str(tmp_path), **FLAGS)
    accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    with pytest.raises(ValueError, match=r"AcceleratorState\(\)\.mixed_precision is bf16"):
        fastsft.Trainer(model(), args, transformers.default_data_collator, Plain())


@pytest.mark.parametrize("moment", ["Trainer", "train"])
def test_the_accumulation_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    trainer = ours(tmp_path, Plain())
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    assert theirs(tmp_path, Plain()).accelerator.gradient_accumulation_steps == 4
    with pytest.raises(ValueError, match=r"ACCELERATE_GRADIENT_ACCUMULATION_STEPS is 4.*unset it"):
        trainer.train() if moment == "train" else ours(tmp_path, Plain())


def test_what_agrees_is_trained(tmp_path: Path) -> None:
    args = transformers.TrainingArguments(str(tmp_path), **FLAGS)
    accelerate.Accelerator(cpu=True)
    trainer = fastsft.Trainer(model(), args, transformers.default_data_collator, Plain())
    assert len(losses(trainer)) == 8
