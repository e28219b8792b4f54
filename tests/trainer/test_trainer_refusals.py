"""What is refused before the first step. The engine is a small fake."""

import numpy as np
import pytest

from fake_run import Model, fake_trainer
from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.data.token_rows import TokenRows
from fastsft.trainer import Trainer

pytestmark = pytest.mark.usefixtures("fake_saving")


def test_evaluation_needs_data(tmp_path):
    with pytest.raises(ValueError, match="eval_dataset"):
        fake_trainer(tmp_path).evaluate()


@pytest.mark.parametrize(
    "options", [{"eval_strategy": "steps"}, {"eval_strategy": "epoch"}, {"eval_on_start": True}]
)
def test_evaluation_without_data_is_refused_at_the_start(tmp_path, options):
    with pytest.raises(ValueError, match=r"--eval_(strategy|on_start).*--eval_data_path"):
        fake_trainer(tmp_path, **options)


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/self"])
def test_output_dir_that_takes_no_files_is_refused_at_the_start(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="choose another --output_dir"):
        fake_trainer(tmp_path, output_dir=str(tmp_path / name))


def test_output_dir_of_the_model_is_refused_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(Model, "source_directory", tmp_path)
    with pytest.raises(ValueError, match="never overwritten, choose another --output_dir"):
        fake_trainer(tmp_path)
    fake_trainer(tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []


def test_a_module_is_no_model(tmp_path):
    import torch

    with pytest.raises(ValueError, match=r"expected model to be a directory, .*got Linear"):
        Trainer(torch.nn.Linear(1, 1), args=TrainingArguments(output_dir=str(tmp_path), use_cpu=True))


def test_a_vocabulary_that_does_not_hold_the_data_is_refused_at_the_start():
    rows = _C.TokenDataset()
    rows.append(np.array([1, 5, 2], dtype=np.int32), [(1, 3)])
    TokenRows(rows, 8).check_ids(6)
    with pytest.raises(ValueError, match="token id 5, the model knows 5"):
        TokenRows(rows, 8).check_ids(5)
