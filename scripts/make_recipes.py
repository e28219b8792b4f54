"""Writes the recipes of `fastsft recipes`, and the table of models and cards in docs/memory.md.

usage: python scripts/make_recipes.py [--check]

Memory is what `fastsft plan` plans. `--check` writes nothing, and exits 1 if a file has another text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fastsft.cli.plan import open_setting, plan_of_full_rows, plan_parser
from fastsft.planning.devices import usable_memory
from fastsft.planning.gpus import Gpu, gpu_named
from fastsft.planning.memory_plan import EngineSettings, MemoryPlan
from fastsft.planning.plan_request import MemoryBudget

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "python" / "fastsft" / "recipes"
PAGE = ROOT / "docs" / "memory.md"
CONFIGS = ROOT / "benchmarks" / "configs"
BEGIN, END = "<!-- scripts/make_recipes.py writes this table -->\n", "<!-- end of the table -->\n"
NAMED = ("T4", "RTX 4090", "A100-40GB", "L40S", "A100", "H100")  # cards of the recipes
CARDS = (
    *("T4", "A10", "L4", "RTX 3090", "RTX 4090", "RTX 5090"),
    *("A100-40GB", "L40S", "A100", "H100", "H200", "B200"),
)
ROW = 2048
LORA = {
    "lora": "true", "lora_r": "16", "lora_alpha": "32", "lora_dropout": "0.05",
    "lora_target_modules": "[all-linear]", "save_merged": "true",
}  # fmt: skip
METHODS = {
    "full": ("all weights", {}, "1.0e-5"),
    "lora": ("LoRA", LORA, "1.0e-4"),
    "qlora": ("QLoRA, the base model in 4 bits", {**LORA, "q_lora": "true"}, "2.0e-4"),
}
# 8.03 bytes a parameter instead of 16: what trains 7B and 8B whole on 80 GB.
NARROW = {"grad_dtype": "bfloat16", "optim": "adamw_8bit"}
GATED = "accept the terms on its page, then hf auth login"
OWN = ("", "the model's own; each reply is learned")
TEMPLATE = ("spans", OWN[1])  # of models for which auto takes FastChat's labels
VICUNA = ("", "vicuna_v1.1, which the tokenizer does not have; the labels are FastChat's")


@dataclass(frozen=True)
class Model:
    """A model that recipes are written for.

    config: file in benchmarks/configs, and name of its recipes. labels: --mask_policy, if it is not auto's
    choice, and the template.
    """

    config: str
    title: str
    hub_name: str
    needs: str = ""
    labels: tuple[str, str] = OWN
    is_large: bool = False
    is_native: bool = True
    has_recipes: bool = True

    def flags(self, method: str) -> dict[str, str]:
        """Return the flags that memory depends on, in the words of YAML."""
        narrow = NARROW if self.is_large and method == "full" else {}
        return {**METHODS[method][1], **narrow}


MODELS = (
    Model("qwen2.5-0.5b", "Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
    Model("llama-3.2-1b", "Llama-3.2-1B-Instruct", "meta-llama/Llama-3.2-1B-Instruct", GATED),
    Model("qwen2.5-1.5b", "Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct"),
    Model(
        "gemma-3-4b", "Gemma-3-4B-it (its text decoder)", "google/gemma-3-4b-it",
        f"pip install transformers peft (generic engine); {GATED}", is_native=False,
    ),
    Model("vicuna-7b", "Vicuna-7B-v1.5", "lmsys/vicuna-7b-v1.5", labels=VICUNA, is_large=True),
    Model(
        "mistral-7b-v0.3", "Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-Instruct-v0.3", GATED,
        TEMPLATE, is_large=True,
    ),
    Model("qwen2.5-7b", "Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct", is_large=True),
    Model(
        "llama-3.1-8b", "Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", GATED, is_large=True
    ),
    Model("qwen3-8b", "Qwen3-8B", "Qwen/Qwen3-8B", is_large=True),
    Model(
        "vicuna-13b", "Vicuna-13B-v1.5", "lmsys/vicuna-13b-v1.5", labels=VICUNA, is_large=True,
        has_recipes=False,
    ),
)  # fmt: skip


def combinations() -> Iterator[tuple[Model, str]]:
    """Yield each model with each method that trains it. QLoRA needs the native engine."""
    for model in MODELS:
        for method in METHODS:
            if model.is_native or method != "qlora":
                yield model, method


def card(name: str) -> Gpu:
    """Return the data sheet of a card that the table has."""
    gpu = gpu_named(name)
    assert gpu is not None and gpu.name == name
    return gpu


class Plans:
    """The plans of a model and a method on cards: that of `fastsft plan` with the same flags."""

    def __init__(self, model: Model, method: str) -> None:
        self._flags = {name: value.strip("[]") for name, value in model.flags(method).items()}
        self._config = CONFIGS / f"{model.config}.json"
        self._opened: dict[str, tuple[argparse.Namespace, EngineSettings]] = {}

    def words(self, name: str) -> list[str]:
        """Return the arguments of `fastsft plan` for a card, which a T4 has with --fp16."""
        dtype = "--fp16" if card(name).capability < (8, 0) else "--bf16"
        plain = {
            flag: value for flag, value in self._flags.items() if flag not in ("lora_alpha", "save_merged")
        }
        flags = [word for flag, value in plain.items() for word in (f"--{flag}", value)]
        return ["--model", str(self._config), dtype, "True", "--model_max_length", str(ROW), *flags]

    def on(self, name: str) -> MemoryPlan | None:
        """Return the plan for a card; None if the card cannot run it or has too little memory."""
        words, gpu = self.words(name), card(name)
        if words[2] not in self._opened:
            args = plan_parser().parse_args([*words, "--device", "cuda"])
            self._opened[words[2]] = args, open_setting(args)[1]
        args, setting = self._opened[words[2]]
        room = MemoryBudget(usable_memory("cuda", gpu.memory))
        try:
            return plan_of_full_rows(args, replace(setting, gpu=gpu), room)
        except ValueError:
            return None


def gib(size: float) -> str:
    """Format bytes as GiB with one digit."""
    return f"{size / 2**30:.1f}"


def recipe(model: Model, method: str, plans: Plans) -> str | None:
    """Return the text of a recipe; None if it fits on none of the named cards."""
    fitting = {name: plan for name in NAMED if (plan := plans.on(name)) is not None}
    if not fitting:
        return None
    name, (words, _, rate) = f"{model.config}-{method}", METHODS[method]
    policy, template = model.labels
    lines = [
        f"# {model.title}: {words}",
        f"# command:  fastsft train --config {name}.yaml",
        f"# fetch:    hf download {model.hub_name}, which the command does, too",
        f"# look:     fastsft doctor --config {name}.yaml, once it is there",
        '# data:     [{"conversations": '
        '[{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}]',
        "#           or another format of docs/data_files.md, such as JSON lines with messages",
        f"# template: {template}",
        *([f"# needs:    {model.needs}"] if model.needs else []),
        f"# memory:   GiB, planned for rows of {ROW:,} tokens and not measured, of what a run may take on",
    ]
    for title, plan in fitting.items():
        remark = ", with fp16: true for bf16: true" if plan.setting.state.compute_dtype == "float16" else ""
        room = usable_memory("cuda", card(title).memory)
        lines.append(f"#   {title:<10} {gib(plan.total):>4} of {gib(room)}{remark}")
    if others := [title for title in NAMED if title not in fitting]:
        lines.append(f"#   not on {', '.join(others)}")
    values = {
        "model_name_or_path": model.hub_name, "data_path": "conversations.json", "output_dir": "output",
        "bf16": "true", **model.flags(method), **({"mask_policy": policy} if policy else {}),
        "model_max_length": str(ROW),
        "num_train_epochs": "3", "per_device_train_batch_size": "2", "gradient_accumulation_steps": "8",
        "learning_rate": rate, "warmup_ratio": "0.03", "lr_scheduler_type": "cosine", "logging_steps": "1",
        "save_strategy": "steps", "save_steps": "200", "save_total_limit": "2",
    }  # fmt: skip
    return "\n".join([*lines, *(f"{flag}: {value}" for flag, value in values.items())]) + "\n"


def table_row(model: Model, method: str, plans: Plans) -> str:
    """Return the row of the table, with whole GiB."""
    cells = (plans.on(name) for name in CARDS)
    sizes = " | ".join("-" if plan is None else f"{plan.total / 2**30:.0f}" for plan in cells)
    return f"| {model.title.partition(' ')[0]} | {METHODS[method][0].partition(',')[0]} | {sizes} |\n"


def texts() -> dict[Path, str]:
    """Return what each file has to have."""
    files, rows = {}, []
    for model, method in combinations():
        plans = Plans(model, method)
        rows.append(table_row(model, method, plans))
        text = recipe(model, method, plans) if model.has_recipes else None
        if text is not None:
            files[RECIPES / f"{model.config}-{method}.yaml"] = text
    return {**files, PAGE: with_table(PAGE.read_text("utf-8"), rows)}


def with_table(page: str, rows: Sequence[str]) -> str:
    """Return the page with the table of `rows` between the two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    head = f"| model | trained | {' | '.join(CARDS)} |\n|---|---|{'---|' * len(CARDS)}\n"
    return f"{before}{BEGIN}\n{head}{''.join(rows)}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write all files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(arguments).check
    expected = texts()
    wrong = [path for path, text in expected.items() if not path.is_file() or path.read_text("utf-8") != text]
    stale = sorted(set(RECIPES.glob("*.yaml")) - expected.keys())
    for path in wrong if not check else ():
        path.write_text(expected[path], "utf-8")
    for path in stale if not check else ():
        path.unlink()
    for path in [*wrong, *stale]:
        print(path.relative_to(ROOT))
    return 1 if check and (wrong or stale) else 0


if __name__ == "__main__":
    sys.exit(main())
