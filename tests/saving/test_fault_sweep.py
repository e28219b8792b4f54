"""File calls of every kind fail or are the last of a run; the same command again ends as the undisturbed one.

docs/spec/reliability.md, rows R20 and R21. FASTSFT_SWEEP_TABLE names a file for the table of a whole sweep:

    FASTSFT_SWEEP_TABLE=benchmarks/results/fault_sweep.md pytest -m chaos tests/saving/test_fault_sweep.py
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fault_sweep import FROM_THEN_ON, HEADER, ONCE, Fault, Scenario, Sweep, build, chosen
from small_model import write_small_model
from warm_ranks import TRAINER, WarmRanks, spread

SHORT = json.loads((TRAINER / "h_resume.json").read_text())["flags"]
EVALUATED = {"eval_data_path": "data/first48.json", "eval_strategy": "steps", "eval_steps": 2}
TABLE = os.environ.get("FASTSFT_SWEEP_TABLE")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmRanks]:
    library = build(tmp_path_factory.mktemp("library"))
    ranks = WarmRanks(tmp_path_factory.mktemp("logs"), {"LD_PRELOAD": str(library)})
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of 6 steps with three checkpoints, of which one stays."""
    model = write_small_model(tmp_path_factory.mktemp("small"))
    return {
        **SHORT, "model_name_or_path": str(model), "save_steps": 2, "save_total_limit": 1, "plot_loss": False,
        "save_patience": 1,
    }  # fmt: skip


@pytest.fixture(scope="module")
def sweep(warm: WarmRanks, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return Sweep(warm, tmp_path_factory.mktemp("trials"))


@pytest.fixture(scope="module")
def older(warm: WarmRanks, flags: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a shorter run left that saved no checkpoints."""
    output = tmp_path_factory.mktemp("older") / "out"
    warm.train({**flags, "max_steps": 2, "save_strategy": "no", "learning_rate": 0.01}, output)
    return output


@pytest.fixture(scope="module")
def broken_off(warm: WarmRanks, flags: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints of a run that was killed before it removed the older one."""
    output = tmp_path_factory.mktemp("broken_off") / "out"
    warm.train({**flags, "save_total_limit": 3}, output)
    for path in output.iterdir():
        if path.name not in ("checkpoint-2", "checkpoint-4"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return output


@pytest.fixture(scope="module")
def scenarios(flags: dict[str, Any], older: Path, broken_off: Path) -> dict[str, Scenario]:
    best = {**flags, **EVALUATED, "load_best_model_at_end": True}
    merged = {**flags, "lora": True, "lora_r": 2, "save_merged": True}
    ranks = spread(flags, 2)
    return {
        "plain": Scenario(flags, 42),
        "best model": Scenario(best, 34),
        "LoRA, merged": Scenario(merged, 36),
        "two ranks": Scenario(ranks, 46, ranks=2),
        "two ranks, streamed": Scenario({**ranks, "save_mode": "stream"}, 34, ranks=2),
        "over an older model": Scenario({**flags, "overwrite_output_dir": True}, 34, before=older),
        "resumed": Scenario(flags, 28, before=broken_off),
        "token cache": Scenario({**flags, "save_strategy": "no"}, 22, cache=True),
        "pictures": Scenario({**flags, **EVALUATED, "plot_loss": True}, 12),
    }


NAMES = [
    *("plain", "best model", "LoRA, merged", "two ranks", "two ranks, streamed", "over an older model"),
    *("resumed", "token cache", "pictures"),
]


@pytest.fixture(scope="module")
def table() -> Path | None:
    if TABLE:
        Path(TABLE).write_text(HEADER)
    return Path(TABLE) if TABLE else None


def wrong_of(
    sweep: Sweep, scenario: Scenario, faults: list[Fault], name: str, table: Path | None
) -> list[str]:
    wrong = []
    for fault in faults:
        trial = sweep.trial(scenario, fault)
        if table:
            with table.open("a") as file:
                file.write(trial.row(name))
        wrong += [f"{fault}: {trial.first}: {trial.said}: {text}" for text in trial.wrong]
    return wrong


@pytest.mark.chaos
@pytest.mark.parametrize("name", NAMES)
def test_all_faults(sweep: Sweep, scenarios: dict[str, Scenario], table: Path | None, name: str) -> None:
    scenario = scenarios[name]
    sweep.record(scenario)
    faults = chosen(scenario, name)
    assert len(faults) == scenario.faults
    assert wrong_of(sweep, scenario, faults, name, table) == []


# What once left a folder, put a model of its own aside, or ended a run over nothing.
FOUND: dict[str, tuple[dict[str, Any], list[Fault]]] = {
    "plain": (
        {},
        [
            Fault(0, "rename .fastsft-trash-.fastsft-new-*-*", 1, ONCE, "EDQUOT"),
            Fault(0, "unlink .fastsft-trash-.fastsft-new-*-*/manifest.json", 1, ONCE, "EACCES"),
            Fault(0, "rename .fastsft-trash-checkpoint-2-*", 1, ONCE, "ENOSPC"),
        ],
    ),
    "LoRA, merged": (
        {"lora": True, "lora_r": 2, "save_merged": True},
        [Fault(0, "close .fastsft-tmp-.fastsft-merged.json-*", 1, ONCE, "ENOSPC")],
    ),
    "token cache": ({}, [Fault(0, "close *.lock", 1, ONCE, "ENOSPC")]),
}


@pytest.mark.parametrize("name", FOUND)
def test_some_faults(sweep: Sweep, flags: dict[str, Any], name: str) -> None:
    """Faults that the sweep found, and of a plain run a few others."""
    more, faults = FOUND[name]
    scenario = Scenario({**flags, **more, "max_steps": 4}, 3, cache=name == "token cache")
    sweep.record(scenario)
    others = chosen(scenario, "some") if name == "plain" else []
    assert wrong_of(sweep, scenario, [*faults, *others], name, None) == []


ON_ONE_RANK = [
    Fault(1, "write .fastsft-tmp-2-*/optimizer-rank-00001-of-00002.safetensors", 1, FROM_THEN_ON, "ENOSPC"),
    Fault(1, "create .fastsft-tmp-model-*/model.safetensors", 1, FROM_THEN_ON, "EACCES"),
    Fault(0, "create .fastsft-tmp-train_results.json-*", 1, FROM_THEN_ON, "EIO"),
]


@pytest.mark.variants("ENOSPC")
@pytest.mark.parametrize("fault", ON_ONE_RANK, ids=lambda fault: fault.error)
def test_a_save_that_fails_on_one_rank_ends_both(
    sweep: Sweep, flags: dict[str, Any], tmp_path: Path, fault: Fault
) -> None:
    """The rank itself with its error, and the other because of it: under a launcher the run has status 1."""
    run = sweep.start(Scenario(spread({**flags, "max_steps": 2}, 2), 0, ranks=2), tmp_path, fault)
    other = 1 - fault.rank
    statuses = run.wait(60)
    assert (statuses[fault.rank], statuses[other]) == (1, 3), run.all_text()
    assert os.strerror(getattr(errno, fault.error)) in run.text(fault.rank, "err")
    assert f"rank {fault.rank} failed: " in run.text(other, "err")
    assert "Traceback" not in run.all_text()
