"""1 to 4 gloo ranks, every strategy: they save what one rank saves, and read what any number wrote."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from checkpoint import state_run
from fastsft import _C
from ranks import run_ranks
from saved_runs import same
from tiny_models import STRATEGIES, make_engine, train, weights_of, write_model


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
    world_size = request.param
    args = source["model"], work, source["state"]
    run_ranks(world_size, state_run.run, *args, node_size=2 if world_size == 4 else 0)
    return world_size, work


def layout_of(path: Path) -> dict[str, tuple[int, int]]:
    """Which elements of each unit a file holds."""
    layout = json.loads(_C.SafetensorsReader(str(path)).metadata["fastsft"])
    return {unit["name"]: (unit["begin"], unit["end"]) for unit in layout["units"]}


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
    first, second = run_ranks(2, state_run.fail, source["model"], tmp_path, source["state"])
    assert "1 of 2 ranks failed" in first["load"] and "cannot" not in first["load"]
    assert second["load"].startswith("ValueError") and "not there" in second["load"]
    assert "found none" in first["state"] and "1 of 2 ranks failed" in second["state"]
    assert "cannot create" in first["save"] and "1 of 2 ranks failed" in second["save"]
    assert same(weights_of(tmp_path / "saved"), weights_of(source["model"]))
