"""`--eval_split` trains and evaluates as two files would, on any number of ranks, and after a kill."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from fastsft.arguments.data import DataArguments
from fastsft.data.data_module import make_supervised_data_module
from fastsft.tokenizer import Tokenizer
from saved_runs import same
from tiny_models import weights_of
from warm_ranks import WarmRanks

EVALUATION = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1, "data_seed": 5, "max_steps": 6}


@pytest.fixture(scope="module")
def split(short: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two files with the records of both sides, found by their tokens."""
    tokenizer = Tokenizer.from_pretrained(short["model_name_or_path"], model_max_length=2048)
    policy = {"mask_policy": "spans", "template": "vicuna_v1.1"}
    args = DataArguments(data_path=short["data_path"], data_cache="none", **policy)
    rows = make_supervised_data_module(tokenizer, args)["train_dataset"].native
    args.eval_split, args.eval_split_seed = 10, 5
    chosen = make_supervised_data_module(tokenizer, args)["eval_dataset"].native
    texts = {chosen.ids(row).tobytes() for row in range(len(chosen))}
    records, folder = json.loads(Path(short["data_path"]).read_text()), tmp_path_factory.mktemp("split")
    is_chosen = [rows.ids(row).tobytes() in texts for row in range(len(rows))]
    assert sum(is_chosen) == 10 and len(records) == len(rows)
    for name, side in (("train.json", False), ("eval.json", True)):
        of_side = [record for record, is_there in zip(records, is_chosen, strict=True) if is_there is side]
        (folder / name).write_text(json.dumps(of_side))
    return folder / "train.json", folder / "eval.json"


def losses(output: Path) -> list[dict[str, float]]:
    history = json.loads((output / "trainer_state.json").read_text())["log_history"]
    kept = ("step", "loss", "eval_loss", "grad_norm")
    return [{name: entry[name] for name in kept if name in entry} for entry in history]


@pytest.mark.parametrize("ranks", [1, 2])
def test_as_two_files_and_after_a_kill(
    warm: WarmRanks, short: dict[str, Any], split: tuple[Path, Path], tmp_path: Path, ranks: int
) -> None:
    flags = {**short, **EVALUATION, "per_device_train_batch_size": 4 // ranks}
    by_files = {**flags, "data_path": split[0], "eval_data_path": split[1]}
    warm.train(by_files, tmp_path / "files", ranks)
    by_split = {**flags, "eval_split": 10}
    text = warm.train(by_split, tmp_path / "split", ranks)
    assert "--eval_split 10: 10 of 48 conversations to evaluate on, the rest to train on" in text
    assert losses(tmp_path / "split") == losses(tmp_path / "files")
    assert len([entry for entry in losses(tmp_path / "split") if "eval_loss" in entry]) == 3
    assert same(weights_of(tmp_path / "split"), weights_of(tmp_path / "files"))
    fault = ("place", "fastsft.trainer.evaluator:Evaluator.evaluate", "kill", -1, 3)
    run = warm.start(by_split, tmp_path / "killed", ranks, fault=fault)
    assert run.wait(60) == [-signal.SIGKILL] * ranks
    assert "resumed from" in warm.start(by_split, tmp_path / "killed", ranks).finish()
    assert losses(tmp_path / "killed") == losses(tmp_path / "split")
    assert same(weights_of(tmp_path / "killed"), weights_of(tmp_path / "split"))


EVALUATE = "fastsft.trainer.evaluator:Evaluator.evaluate"


@pytest.mark.covering
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("place", [(EVALUATE, 3), (EVALUATE, 4), ("fastsft.trainer.run:Run.end_steps", 1)])
def test_early_stopping_after_a_kill(
    warm: WarmRanks, short: dict[str, Any], tmp_path: Path, ranks: int, place: tuple[str, int]
) -> None:
    """The loss falls and greater is better: the first evaluation stays the best, the fourth is the end."""
    flags = {
        **short, **EVALUATION, "per_device_train_batch_size": 4 // ranks, "eval_steps": 1, "save_steps": 1,
        "eval_split": 10, "early_stopping_patience": 3, "greater_is_better": True, "max_steps": 8,
    }  # fmt: skip
    text = warm.train(flags, tmp_path / "whole", ranks)
    assert "stopped     early: eval_loss" in text and "step 4/8, saving the model" in text
    target, call = place
    fault = ("place", target, "kill", -1, call)
    assert warm.start(flags, tmp_path / "killed", ranks, fault=fault).wait(60) == [-signal.SIGKILL] * ranks
    assert "resumed from" in warm.start(flags, tmp_path / "killed", ranks).finish()
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert same(weights_of(tmp_path / "killed"), weights_of(tmp_path / "whole"))
    assert "this run is finished" in warm.start(flags, tmp_path / "killed", ranks).finish()


def test_a_resumed_run_with_another_split_is_refused(
    warm: WarmRanks, short: dict[str, Any], tmp_path: Path
) -> None:
    flags = {**short, **EVALUATION, "eval_split": 10}
    fault = ("place", "fastsft.trainer.evaluator:Evaluator.evaluate", "kill", -1, 3)
    warm.start(flags, tmp_path, fault=fault).wait(60)
    for change, said in (({"eval_split": 9}, "the old --eval_split"), ({"data_seed": 6}, "data_seed")):
        run = warm.start({**flags, **change}, tmp_path)
        assert run.wait(60) == [1] and said in run.all_text()
