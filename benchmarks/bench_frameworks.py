"""One recipe trained by TRL, LLaMA-Factory, ms-swift and axolotl, and by fastsft with the imported file.

    python benchmarks/bench_frameworks.py trl=PYTHON llamafactory=PYTHON swift=PYTHON axolotl=PYTHON [--write]

PYTHON has the framework (docs/comparing_labels.md says how to install each). A tiny random model in float32
on the CPU; all conversations are in one optimizer step, so that their order does not count. Each framework
reads its own file, with its own defaults; `fastsft import` makes ours of it.

Of each pair: the losses of every step, the rows of the first step as the framework's model got them, and
ours. The first loss of both sides must be the mean over its own targets, as transformers computes it for the
initial weights (`recomputed`), within 1e-5 (axolotl's: the mean of its micro-batches' means). A difference
between the first losses is then that of the labels, whose kinds `fastsft inspect --against_config` counts.
`--write` writes the table of docs/comparing_labels.md, too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import torch
import yaml

from fastsft import _C
from fastsft.cli import import_config
from fastsft.data.chat.labelling import LabelSettings
from fastsft.inspection.against.comparison import Against, Comparison, compare
from fastsft.inspection.against.configuration import read_configuration
from fastsft.inspection.against.frameworks import FRAMEWORKS
from fastsft.inspection.inspect import prepare
from framework_recipes import (
    LENGTH,
    MARKED,
    RECIPES,
    RECORDS,
    STEPS,
    TEMPLATES,
    configurations,
    write_data,
    write_stand_in,
)  # fmt: skip
from harness import RESULTS, UnequalResultsError, hardware, run_json, versions

PAGE = Path(__file__).parents[1] / "docs" / "comparing_labels.md"
BEGIN, END = "<!-- curves: begin -->", "<!-- curves: end -->"
SCRIPT = Path(__file__).parent / "baselines" / "framework_trainer.py"
TOLERANCE = 1e-5
# axolotl 0.19 does not let the Trainer divide by a step's targets. Its loss is the average over micro-batches
# of each micro-batch's mean, so a token weighs more in a micro-batch with few targets.
MEANS_OF_MICRO_BATCHES = ("axolotl",)
Row = list[list[int]]
Rows = list[Row]


@dataclass
class Pair:
    """A framework and fastsft on one recipe: the losses of each step.

    recipe: a key of RECIPES. recomputed: the largest difference between the first loss of a side and the mean
    over its targets. targets: how many tokens each side learns. kinds: counts of differences by kind.
    is_of_means: True if the framework's loss is the mean of several micro-batches' means. lost: headings of
    the keys that the import does not carry.
    """

    recipe: str
    template: str
    framework: str
    theirs: list[float]
    ours: list[float]
    recomputed: float
    targets: tuple[int, int]
    kinds: dict[str, dict[str, int]]
    is_of_means: bool
    lost: list[str]
    versions: dict[str, str]

    @property
    def first(self) -> float:
        return abs(self.theirs[0] - self.ours[0])

    @property
    def largest(self) -> float:
        return max(abs(a - b) for a, b in zip(self.theirs, self.ours, strict=True))


def environment(folder: Path) -> dict[str, str]:
    """Variables with which no framework downloads, reports or looks for a GPU."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return {
        **kept, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false",
        "WANDB_MODE": "disabled", "DO_NOT_TRACK": "1", "AXOLOTL_DO_NOT_TRACK": "1",
        "DISABLE_VERSION_CHECK": "1", "MODELSCOPE_CACHE": str(folder / "modelscope"),
        "HF_DATASETS_CACHE": str(folder / "cache"),
    }  # fmt: skip


def run_theirs(name: str, python: str, config: Path, folder: Path) -> Any:
    report = folder / f"{name}.report.json"
    if report.exists():
        return json.loads(report.read_text())
    command = [python, str(SCRIPT), name, str(config), "--report", str(report)]
    return run_json(command, report, env=environment(folder))


def run_ours(config: Path, out: Path) -> list[float]:
    """The losses of `fastsft train` with an imported file."""
    if (out / "trainer_state.json").exists():
        return losses_of(out)
    flags = ["--config", str(config), "--output_dir", str(out), "--logging_steps", "1"]
    command = [sys.executable, "-m", "fastsft.cli.main", "train", *flags, "--plot_loss", "False"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"fastsft train --config {config}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    return losses_of(out)


def losses_of(out: Path) -> list[float]:
    history = json.loads((out / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


def compared_labels(config: Path, model: Path, data: Path, python: str) -> Comparison:
    """What `fastsft inspect --against_config` compares."""
    found = read_configuration(config)
    names = ("mask_policy", "template", "learn", "learn_thoughts", "default_system")
    settings = LabelSettings(**{name: str(found.imported[name]) for name in names if name in found.imported})
    setup = prepare(str(model), settings, LENGTH, str(data))
    seen = setup.read(str(data), _C.SurveyChoice(count=RECORDS, whole=True))[1]
    against = Against(found.name, found.settings, python, 600.0, found.description_of)
    return compare(setup, str(data), seen, against)


def loss_of(model: Path, rows: Rows) -> float:
    """The mean over all targets, row by row, as transformers computes it for the initial weights."""
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    total = 0.0
    with torch.no_grad():
        for ids, labels in rows:
            logits = whole(torch.tensor([ids])).logits[0, :-1]
            targets = torch.tensor(labels[1:])
            total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
    return total / num_targets(rows)


def num_targets(rows: Rows) -> int:
    return sum(label != -100 for _, labels in rows for label in labels[1:])


def loss_there(name: str, model: Path, micro_batches: list[Rows]) -> float:
    """The first loss of a framework: over all targets of its step, or the mean of micro-batches' means."""
    if name not in MEANS_OF_MICRO_BATCHES:
        return loss_of(model, [row for rows in micro_batches for row in rows])
    return sum(loss_of(model, rows) for rows in micro_batches) / len(micro_batches)


def rows_of(comparison: Comparison, side: str) -> Rows:
    rows = [row for record in comparison.records if (row := getattr(record, side)) is not None]
    return [
        [row.ids, [i if bit else -100 for i, bit in zip(row.ids, row.learned, strict=True)]] for row in rows
    ]


def compare_pair(recipe: str, name: str, python: str, template: str, folder: Path) -> Pair:
    """Train both sides and check that each first loss is the mean over its own targets."""
    model, data = folder / "model", folder / "data" / "chats.jsonl"
    file, given = configurations(model, data, folder / f"{name}-out", template)[name]
    given |= RECIPES[recipe][name]
    config = folder / file
    config.write_text(json.dumps(given) if file.endswith(".json") else yaml.safe_dump(given))
    theirs = run_theirs(name, python, config, folder)
    imported = folder / f"{name}-fastsft.yaml"
    imported.unlink(missing_ok=True)
    with contextlib.redirect_stdout(io.StringIO()):
        import_config.main([str(config), "--output", str(imported)])
    ours = run_ours(imported, folder / f"{name}-ours")
    comparison = compared_labels(config, model, data, python)
    their_rows = [row for rows in theirs["micro_batches"] for row in rows]
    if sorted(their_rows) != sorted(rows_of(comparison, "theirs")):
        raise UnequalResultsError(f"{name}: it trains on other rows than inspect --against_config shows")
    our_rows = rows_of(comparison, "ours")
    means = loss_there(name, model, theirs["micro_batches"]), loss_of(model, our_rows)
    worst = max(abs(a - b) for a, b in zip(means, (theirs["losses"][0], ours[0]), strict=True))
    if not worst <= TOLERANCE:
        raise UnequalResultsError(
            f"{name}: the first losses {theirs['losses'][0]:.8f} and {ours[0]:.8f} are not the means over "
            f"their targets, {means[0]:.8f} and {means[1]:.8f}"
        )
    lost = [line for line in imported.read_text().splitlines() if line.startswith("# NOT CARRIED")]
    kinds = {str(kind): count for kind, count in comparison.counts().items()}
    is_of_means = name in MEANS_OF_MICRO_BATCHES and len(theirs["micro_batches"]) > 1
    return Pair(
        recipe, template, name, theirs["losses"], ours, worst,
        (num_targets(their_rows), num_targets(our_rows)), kinds, is_of_means, lost, theirs["versions"],
    )  # fmt: skip


def table(pairs: list[Pair]) -> Iterator[str]:
    yield (
        "| learned | template | framework | first loss there | here | difference | largest in "
        f"{STEPS} steps | targets there, here | causes |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for pair in pairs:
        means = ["mean of micro-batches"] if pair.is_of_means else []
        causes, title = ", ".join([*pair.kinds, *means]) or "none", FRAMEWORKS[pair.framework].title
        yield (
            f"| {pair.recipe} | {pair.template} | {title} | {pair.theirs[0]:.6f} | {pair.ours[0]:.6f} "
            f"| {pair.first:.1e} | {pair.largest:.1e} | {pair.targets[0]:,}, {pair.targets[1]:,} | {causes} |"
        )


def all_pairs(
    pythons: dict[str, str], templates: list[str], folder: Path, failures: dict[str, str]
) -> Iterator[Pair]:
    """Yield what every recipe gives with every template; a pair that fails is written to `failures`."""
    for recipe, template in itertools.product(RECIPES, templates):
        place = folder / recipe.replace(",", "").replace(" ", "_") / template
        if not place.exists():
            write_data(place, is_marked=recipe == MARKED)
            write_stand_in(place / "model", template)
        for name in (name for name in pythons if name in RECIPES[recipe]):
            try:
                yield compare_pair(recipe, name, pythons[name], template, place)
            except (RuntimeError, ValueError) as error:
                failures[f"{recipe}, {template}, {name}"] = str(error)[-3000:]
                print(f"{recipe}, {template}, {name}: {error}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pythons", nargs="+", metavar="NAME=PYTHON")
    parser.add_argument("--templates", nargs="+", choices=TEMPLATES, default=list(TEMPLATES))
    parser.add_argument("--write", action="store_true", help="write the table of docs/comparing_labels.md")
    parser.add_argument(
        "--folder", type=Path, help="keep what runs write; a run whose report is there is not made again"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    pairs: list[Pair] = []
    failures: dict[str, str] = {}
    pythons = dict(word.split("=", 1) for word in options.pythons)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        for pair in all_pairs(pythons, options.templates, folder, failures):
            pairs.append(pair)
            print(*list(table([pair]))[2:], flush=True)
    record = {
        "pairs": [{**asdict(p), "first": p.first, "largest": p.largest} for p in pairs], "failures": failures,
        "versions": versions(("fastsft", "torch", "transformers")), "hardware": hardware(),
    }  # fmt: skip
    (options.results / "frameworks.json").write_text(json.dumps(record, indent=1) + "\n")
    if options.write:
        head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        lines = "\n".join(table(pairs))
        PAGE.write_text(f"{head}{BEGIN}\n\n{lines}\n\n{END}{rest.partition(END)[2]}", "utf-8")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
