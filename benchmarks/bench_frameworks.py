"""One recipe trained by TRL, LLaMA-Factory, ms-swift and axolotl, and by fastsft with the imported file.

    python benchmarks/bench_frameworks.py trl=PYTHON llamafactory=PYTHON swift=PYTHON axolotl=PYTHON [--write]

PYTHON has the framework (docs/comparing_labels.md says how to install each). A tiny random model in float32
on the CPU; all conversations are in one optimizer step, so that their order does not count. Each framework
reads its own file, with its own defaults; `fastsft import` makes ours of it.

Of each pair: the losses of every step, the rows of the first step as the framework's model got them, and
ours. The first loss of both sides must be the mean over its own targets, as transformers computes it for the
initial weights (`recomputed`), within 1e-5: a difference between the first losses is then that of the labels,
whose kinds `fastsft inspect --against_config` counts. `--write` writes the table of docs/comparing_labels.md,
too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
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
from fastsft.cli.demo import packaged_conversations
from fastsft.data.chat.labelling import LabelSettings
from fastsft.inspection.against.comparison import Against, Comparison, compare
from fastsft.inspection.against.configuration import read_configuration
from fastsft.inspection.against.frameworks import FRAMEWORKS
from fastsft.inspection.inspect import prepare
from harness import RESULTS, UnequalResultsError, hardware, run_json, versions
from published_templates import write_model

PAGE = Path(__file__).parents[1] / "docs" / "comparing_labels.md"
BEGIN, END = "<!-- curves: begin -->", "<!-- curves: end -->"
SCRIPT = Path(__file__).parent / "baselines" / "framework_trainer.py"
TOLERANCE = 1e-5
RECORDS, BATCH, STEPS, LENGTH, RATE = 16, 4, 6, 1024, 1e-3
# Template: kind of model, and the names that LLaMA-Factory and ms-swift have for it.
TEMPLATES = {
    "qwen2.5": ("qwen2", "qwen", {"model_type": "qwen2", "template": "qwen2_5"}),
    "llama-3": ("llama", "llama3", {"model_type": "llama", "template": "llama3"}),
}
SYSTEM = "Answer in one sentence."
Rows = list[list[list[int]]]


def write_stand_in(folder: Path, template: str) -> Path:
    """A tiny random model with the published template and its special tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    write_model(folder, template)
    # TRL knows templates by their whole text, and Qwen2.5's ends with a line break.
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text("utf-8").rstrip("\n") + "\n" * (template == "qwen2.5"), "utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        TEMPLATES[template][0], vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
        initializer_range=0.1, tie_word_embeddings=False, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def records() -> Iterator[dict[str, Any]]:
    """Conversations of the demo as messages; every other one has a system text."""
    names = {"human": "user", "gpt": "assistant"}
    for number, record in enumerate(json.loads(packaged_conversations())[:RECORDS]):
        messages = [{"role": names[m["from"]], "content": m["value"]} for m in record["conversations"]]
        system = [{"role": "system", "content": SYSTEM}] if number % 2 else []
        yield {"messages": [*system, *messages]}


def configurations(
    model: Path, data: Path, out: Path, template: str
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return a file of each framework: its name and its keys. Other keys have the framework's defaults."""
    _, llamafactory, swift = TEMPLATES[template]
    steps = {"gradient_accumulation_steps": RECORDS // BATCH, "learning_rate": RATE}
    usual = {
        **steps, "per_device_train_batch_size": BATCH, "num_train_epochs": STEPS, "logging_steps": 1,
        "save_strategy": "no", "report_to": "none", "output_dir": str(out),
    }  # fmt: skip
    return {
        "trl": ("trl.yaml", {
            "model_name_or_path": str(model), "dataset_name": str(data.parent), "assistant_only_loss": True,
            "max_length": LENGTH, "dtype": "float32", "bf16": False, **usual,
        }),
        "llamafactory": ("llamafactory.yaml", {
            "model_name_or_path": str(model), "stage": "sft", "do_train": True, "finetuning_type": "full",
            "dataset": "chats", "dataset_dir": str(data.parent.parent), "template": llamafactory,
            "cutoff_len": LENGTH, "bf16": False, **usual,
        }),
        "swift": ("swift.json", {
            "model": str(model), **swift, "tuner_type": "full", "dataset": [str(data)],
            "torch_dtype": "float32", "max_length": LENGTH, "split_dataset_ratio": 0, **usual,
        }),
        "axolotl": ("axolotl.yaml", {
            "base_model": str(model), "sequence_len": LENGTH, "chat_template": "tokenizer_default",
            "datasets": [{"path": str(data), "ds_type": "json", "type": "chat_template"}],
            "micro_batch_size": BATCH, "num_epochs": STEPS, **steps, "optimizer": "adamw_torch",
            "lr_scheduler": "cosine", "bf16": False, "fp16": False, "tf32": False, "logging_steps": 1,
            "save_strategy": "no", "val_set_size": 0, "output_dir": str(out),
            "dataset_prepared_path": str(out / "prepared"),
        }),
    }  # fmt: skip


@dataclass
class Pair:
    """A framework and fastsft on one recipe: the losses of each step.

    recomputed: the largest difference between the first loss of a side and the mean over its targets.
    targets: how many tokens each side learns. kinds: counts of differences by kind. lost: headings of the
    keys that the import does not carry.
    """

    template: str
    framework: str
    theirs: list[float]
    ours: list[float]
    recomputed: float
    targets: tuple[int, int]
    kinds: dict[str, dict[str, int]]
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
    names = ("mask_policy", "template", "learn", "learn_thoughts")
    settings = LabelSettings(**{name: str(found.imported[name]) for name in names if name in found.imported})
    setup = prepare(str(model), settings, LENGTH, str(data))
    seen = setup.read(str(data), _C.SurveyChoice(count=RECORDS, whole=True))[1]
    against = Against(found.name, found.settings, python, 600.0, found.description_of)
    return compare(setup, str(data), seen, against)


def mean_loss(model: Path, rows: Rows) -> float:
    """The mean over all targets, row by row, as transformers computes it for the initial weights."""
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for ids, labels in rows:
            logits = whole(torch.tensor([ids])).logits[0, :-1]
            targets = torch.tensor(labels[1:])
            total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
            count += int((targets != -100).sum())
    return total / count


def rows_of(comparison: Comparison, side: str) -> Rows:
    rows = [row for record in comparison.records if (row := getattr(record, side)) is not None]
    return [
        [row.ids, [i if bit else -100 for i, bit in zip(row.ids, row.learned, strict=True)]] for row in rows
    ]


def compare_pair(name: str, python: str, template: str, folder: Path) -> Pair:
    """Train both sides and check that each first loss is the mean over its own targets."""
    model, data = folder / "model", folder / "data" / "chats.jsonl"
    file, given = configurations(model, data, folder / f"{name}-out", template)[name]
    config = folder / file
    config.write_text(json.dumps(given) if file.endswith(".json") else yaml.safe_dump(given))
    theirs = run_theirs(name, python, config, folder)
    imported = folder / f"{name}-fastsft.yaml"
    imported.unlink(missing_ok=True)
    with contextlib.redirect_stdout(io.StringIO()):
        import_config.main([str(config), "--output", str(imported)])
    ours = run_ours(imported, folder / f"{name}-ours")
    comparison = compared_labels(config, model, data, python)
    if sorted(theirs["rows"]) != sorted(rows_of(comparison, "theirs")):
        raise UnequalResultsError(f"{name}: it trains on other rows than inspect --against_config shows")
    means = [mean_loss(model, rows) for rows in (theirs["rows"], rows_of(comparison, "ours"))]
    worst = max(abs(a - b) for a, b in zip(means, (theirs["losses"][0], ours[0]), strict=True))
    if not worst <= TOLERANCE:
        raise UnequalResultsError(
            f"{name}: the first losses {theirs['losses'][0]:.8f} and {ours[0]:.8f} are not the means over "
            f"their targets, {means[0]:.8f} and {means[1]:.8f}"
        )
    targets = tuple(
        sum(label != -100 for _, labels in rows for label in labels[1:])
        for rows in (theirs["rows"], rows_of(comparison, "ours"))
    )
    lost = [line for line in imported.read_text().splitlines() if line.startswith("# NOT CARRIED")]
    kinds = {str(kind): count for kind, count in comparison.counts().items()}
    return Pair(template, name, theirs["losses"], ours, worst, targets, kinds, lost, theirs["versions"])  # type: ignore[arg-type]


def write_data(folder: Path) -> None:
    """The conversations, and the file with which LLaMA-Factory finds them."""
    (folder / "data").mkdir()
    lines = [json.dumps(record) + "\n" for record in records()]
    (folder / "data" / "chats.jsonl").write_text("".join(lines))
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
            "system_tag": "system"}  # fmt: skip
    entry = {
        "file_name": "data/chats.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": tags,
    }
    (folder / "dataset_info.json").write_text(json.dumps({"chats": entry}))


def table(pairs: list[Pair]) -> Iterator[str]:
    yield (
        "| template | framework | first loss there | here | difference | largest in "
        f"{STEPS} steps | targets there, here | kinds of difference |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for pair in pairs:
        kinds, title = ", ".join(pair.kinds) or "none", FRAMEWORKS[pair.framework].title
        yield (
            f"| {pair.template} | {title} | {pair.theirs[0]:.6f} | {pair.ours[0]:.6f} "
            f"| {pair.first:.1e} | {pair.largest:.1e} | {pair.targets[0]:,}, {pair.targets[1]:,} | {kinds} |"
        )


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
    pairs, failures = [], {}
    with tempfile.TemporaryDirectory() as temporary:
        for template in options.templates:
            folder = (options.folder or Path(temporary)).resolve() / template
            if not folder.exists():
                folder.mkdir(parents=True)
                write_data(folder)
                write_stand_in(folder / "model", template)
            for name, python in (word.split("=", 1) for word in options.pythons):
                try:
                    pairs.append(compare_pair(name, python, template, folder))
                    print(*list(table(pairs[-1:]))[2:], flush=True)
                except (RuntimeError, ValueError) as error:
                    failures[f"{template} {name}"] = str(error)[-3000:]
                    print(f"{template} {name}: {error}", file=sys.stderr, flush=True)
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
