"""train() called from Python: words, dictionary, keyword arguments; sys.argv is not looked at."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import fastsft.train
from fastsft.arguments import DataArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.call_arguments import read_arguments
from fastsft.arguments.parsing.parser import DataclassParser

TRAINER = Path(__file__).parents[1] / "golden" / "trainer"


@pytest.fixture
def parser(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["notebook", "--no_such_flag", "1"])
    return DataclassParser((ModelArguments, DataArguments, TrainingArguments))


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["--model_name_or_path", "m", "--learning_rate", "0.1", "--bf16", "True", "--use_cpu"], {}),
        ({"model_name_or_path": "m", "learning_rate": 0.1, "bf16": True, "use_cpu": True}, {}),
        (None, {"model_name_or_path": Path("m"), "learning_rate": 0.1, "bf16": True, "use_cpu": True}),
        ({"model_name_or_path": "m"}, {"learning_rate": 0.1, "bf16": True, "use_cpu": True}),
    ],
)
def test_all_forms_give_the_same(parser, arguments, flags):
    model, data, training = read_arguments(parser, arguments, flags)
    assert (model.model_name_or_path, data.data_path) == ("m", None)
    assert (training.learning_rate, training.bf16, training.use_cpu) == (0.1, True, True)


@pytest.mark.parametrize(
    ("arguments", "flags", "message"),
    [
        ("--seed 1", {}, "expected a list of words"),
        (["--seed", "1"], {"seed": 1}, "got both"),
        ({"seed": 1}, {"seed": 2}, "given twice.*: seed"),
        (None, {"lerning_rate": 1}, "lerning_rate"),
    ],
)
def test_mistakes(parser, arguments, flags, message):
    with pytest.raises(ValueError, match=message):
        read_arguments(parser, arguments, flags)


def test_a_file_of_flags_and_what_wins_over_it(parser, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("learning_rate: 2e-5\nseed: 7\ndata_path: d.json\n")
    _, data, training = read_arguments(parser, {"config": config}, {"seed": 8, "use_cpu": True})
    assert (data.data_path, training.learning_rate, training.seed) == ("d.json", 2e-5, 8)
    with pytest.raises(ValueError, match="no such file"):
        read_arguments(parser, None, {"config": "nowhere.yaml"})


@pytest.mark.parametrize("program", ["/a/ipykernel_launcher.py", "/b/colab_kernel_launcher.py"])
def test_a_notebook_without_arguments(program, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program, "-f", "kernel.json"])
    with pytest.raises(ValueError, match=r"a notebook has no command line .* fastsft\.launch\("):
        fastsft.train.train()


def test_train_from_python(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["notebook", "--no_such_flag", "1"])
    monkeypatch.setattr(fastsft.train, "local_rank", None)
    output = fastsft.train.train(
        model_name_or_path=TRAINER / "model_untied", data_path=TRAINER / "data" / "first48.json",
        output_dir=tmp_path, use_cpu=True, max_steps=2, per_device_train_batch_size=2, model_max_length=64,
        logging_steps=1, save_strategy="no", plot_loss=False,
    )  # fmt: skip
    assert output.global_step == 2
    assert json.loads((tmp_path / "train_results.json").read_text()) == output.metrics
    assert not (tmp_path / "eval_results.json").exists() and (tmp_path / "model.safetensors").exists()
    assert "trained     2 steps" in capsys.readouterr().out
    again = fastsft.train.train(
        {"data_path": str(TRAINER / "data" / "first48.json"), "output_dir": str(tmp_path / "checked")},
        model_name_or_path=str(TRAINER / "model_untied"),
        check_data=True,
    )
    assert again is None
