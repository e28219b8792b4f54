"""1 to 4 gloo ranks, every strategy: they save what one rank saves, and read what any number wrote."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fastsft import _C
from tiny_models import STRATEGIES, make_engine, train, weights_of, write_model

PROGRAM = Path(__file__).with_name("rank_program.py")


def launch(mode: str, world_size: int, model: Path, work: Path, state: Path) -> None:
    """Runs the program on every rank and waits; the output of a rank that fails is in the assertion."""
    source = Path(_C.__file__).parents[1]
    tests = PROGRAM.parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{source}:{tests}", "OMP_NUM_THREADS": "1"}
    arguments = [str(world_size), mode, str(model), str(work), str(state)]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(world_size)
    ]  # fmt: skip
    try:
        outputs = [rank.communicate(timeout=180)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world_size, "\n".join(outputs)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> dict[str, Path]:
    """A tied model (its one unit is gathered twice) and a training state that one rank made."""
    model = write_model(tmp_path_factory.mktemp("tied"), "tied")
    state = tmp_path_factory.mktemp("state")
    engine = make_engine(model)
    train(engine, 3)
    _C.save_training_state(engine, str(state))
    trained = tmp_path_factory.mktemp("trained")
    _C.save_model(engine, str(trained))
    return {"model": model, "state": state, "trained": trained}


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def run(request, source, tmp_path_factory) -> tuple[int, Path]:
    work = tmp_path_factory.mktemp(f"ranks{request.param}")
    launch("run", request.param, source["model"], work, source["state"])
    return request.param, work


def layout_of(path: Path) -> dict[str, tuple[int, int]]:
    """Which elements of each unit a file holds."""
    layout = json.loads(_C.SafetensorsReader(str(path)).metadata["fastsft"])
    return {unit["name"]: (unit["begin"], unit["end"]) for unit in layout["units"]}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_load_and_save_keep_every_bit(run, source, strategy):
    _, work = run
    assert same(weights_of(work / strategy / "loaded"), weights_of(source["model"]))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_state_of_one_rank_is_read_by_all(run, source, strategy):
    _, work = run
    assert same(weights_of(work / strategy / "resumed"), weights_of(source["trained"]))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_state_of_all_ranks_is_read_by_one(run, source, strategy, tmp_path):
    world_size, work = run
    files = sorted(path.name for path in (work / strategy / "state").iterdir())
    assert files == [f"optimizer-rank-{r:05d}-of-{world_size:05d}.safetensors" for r in range(world_size)]
    engine = make_engine(source["model"])
    _C.load_training_state(engine, str(work / strategy / "state"))
    assert same(engine.named_parameters(), weights_of(work / strategy / "trained"))
    # Written again by one rank it holds the concatenation of what the ranks wrote: moments too.
    _C.save_training_state(engine, str(tmp_path))
    whole = load_file(tmp_path / "optimizer-rank-00000-of-00001.safetensors")
    parts = [(layout_of(path), load_file(path)) for path in (work / strategy / "state").iterdir()]
    for name in whole:  # every element once, whoever holds it
        unit = name.rsplit(".", 1)[0]
        ranges = sorted((*layout[unit], tensors[name]) for layout, tensors in parts if tensors[name].numel())
        assert [begin for begin, _, _ in ranges] == [0, *(end for _, end, _ in ranges[:-1])]
        assert torch.equal(whole[name], torch.cat([values for _, _, values in ranges]))
    assert all(whole[name].any() for name in whole)


def test_one_failing_rank_fails_all_and_nothing_hangs(source, tmp_path):
    launch("failures", 2, source["model"], tmp_path, source["state"])
    outcome = {path.stem: path.read_text() for path in tmp_path.glob("*.txt")}
    assert "1 of 2 ranks failed" in outcome["load-0"] and "cannot" not in outcome["load-0"]
    assert outcome["load-1"].startswith("ValueError") and "not there" in outcome["load-1"]
    assert "found none" in outcome["state-0"] and "1 of 2 ranks failed" in outcome["state-1"]
    assert "cannot create" in outcome["save-0"] and "1 of 2 ranks failed" in outcome["save-1"]
    assert same(weights_of(tmp_path / "saved"), weights_of(source["model"]))
