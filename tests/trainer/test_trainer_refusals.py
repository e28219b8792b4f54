"""What is refused before the first step. The engine is a small fake."""

import numpy as np
import pytest

from fake_run import Model, fake_trainer
from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.data.token_rows import TokenRows
from fastsft.runtime.messages import collected
from fastsft.trainer import Trainer
from fastsft.trainer.compat.overrides import check_best_of_run
from fastsft.trainer.early_stopping import EarlyStoppingCallback
from fastsft.trainer.preflight import check_data, check_metrics

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


def test_names_are_no_objects(tmp_path):
    """The name of a file as a data set, of a metric as a function, a patience as a text, and no model."""
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    with pytest.raises(
        TypeError, match=r"train_dataset: expected rows .*got the name 'a\.json'; files are read"
    ):
        check_data(train_dataset="a.json", eval_dataset=None)
    with pytest.raises(TypeError, match=r"compute_metrics: expected a function .*got 'accuracy'; write one"):
        check_metrics(args, "accuracy")
    with pytest.raises(TypeError, match=r"early_stopping_patience: expected a number .*got '3'"):
        EarlyStoppingCallback("3")
    with pytest.raises(ValueError, match="got NoneType; give model, such as the path"):
        Trainer(None, args=args)


def test_a_vocabulary_that_does_not_hold_the_data_is_refused_at_the_start():
    rows = _C.TokenDataset()
    rows.append(np.array([1, 5, 2], dtype=np.int32), [(1, 3)])
    TokenRows(rows, 8).check_ids(6)
    with pytest.raises(ValueError, match="token id 5, the model knows 5"):
        TokenRows(rows, 8).check_ids(5)


class _WithMetrics(Trainer):
    pass


@pytest.mark.parametrize(
    "options",
    [{"metric_for_best_model": "accuracy", "eval_strategy": "epoch"}, {"save_strategy": "best"}],
)
def test_only_the_own_trainer_has_no_other_metrics_and_evaluations(options, monkeypatch):
    args = TrainingArguments("out", use_cpu=True, **options)
    flag = f"--{next(iter(options))}"
    with pytest.raises(ValueError, match=f"^{flag}"):
        check_best_of_run(Trainer, args, True)
    check_best_of_run(_WithMetrics, args, True)
    monkeypatch.setattr(Trainer, "evaluate", lambda self: {"eval_accuracy": 1.0})
    check_best_of_run(Trainer, args, True)


def test_the_best_without_a_metric_is_that_of_the_loss():
    args = TrainingArguments("out", use_cpu=True, save_strategy="best", eval_strategy="epoch")
    assert (args.metric_for_best_model, args.greater_is_better) == ("loss", False)


def test_a_script_is_told_that_nothing_asks_for_the_best(tmp_path):
    with collected() as notices:
        fake_trainer(tmp_path, save_strategy="best")
    assert any("--save_strategy best with --eval_strategy no" in text for text in notices.warned)
