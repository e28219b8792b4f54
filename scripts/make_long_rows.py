"""Writes the table of longest rows in docs/memory.md, as `fastsft plan` names them.

usage: python scripts/make_long_rows.py [--check]

`--check` writes nothing, and exits 1 if the page has another table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fastsft.cli.plan import open_setting, plan_parser
from fastsft.planning.devices import usable_memory
from fastsft.planning.gpus import gpu_named
from fastsft.planning.longest_row import longest_row
from fastsft.planning.memory_plan import MemoryPlan
from fastsft.planning.plan_request import TILE_TOKENS, MemoryBudget, PlanRequest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "memory.md"
CONFIGS = ROOT / "benchmarks" / "configs"
BEGIN, END = "<!-- scripts/make_long_rows.py writes this table -->\n", "<!-- end of the longest rows -->\n"
CARD = "H100"
TEN_BYTES = "--grad_dtype bfloat16 --optim_dtype bfloat16"
EIGHT_BYTES = "--grad_dtype bfloat16 --optim adamw_8bit"
TILE = TILE_TOKENS["cuda"]
# tile_tokens and offload_inputs of each column
COLUMNS = {
    "neither": (0, False), "inputs on the host": (0, True), "tiles": (TILE, False), "both": (TILE, True),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A model on a number of GPUs, with the flags that say how its state is held."""

    config: str
    title: str
    ranks: int
    flags: str
    offload: bool = False

    def words(self) -> list[str]:
        """Return the arguments of `fastsft plan`."""
        fsdp = "full_shard offload" if self.offload else "full_shard"
        return [
            "--model", str(CONFIGS / f"{self.config}.json"), "--bf16", "True", "--device", "cuda",
            "--world_size", str(self.ranks), "--fsdp", fsdp, *self.flags.split(),
        ]  # fmt: skip

    def plans(self) -> list[MemoryPlan | None]:
        """Return the plan of the longest row in each column."""
        args, gpu = plan_parser().parse_args(self.words()), gpu_named(CARD)
        assert gpu is not None
        setting = replace(open_setting(args)[1], gpu=gpu)
        room = MemoryBudget(usable_memory("cuda", gpu.memory))
        requests = [PlanRequest(tile_tokens=tiles, offload_inputs=host) for tiles, host in COLUMNS.values()]
        return [longest_row(setting, request, room) for request in requests]

    def line(self) -> str:
        """Return the row of the table."""
        plans = self.plans()
        flags = f"`{self.flags}`" if self.flags else "16 bytes a parameter"
        held = f"{flags}, `offload`" if self.offload else flags
        cells = " | ".join(map(_tokens, plans))
        host = f"{plans[-1].host / 2**30:.0f}" if plans[-1] else "-"
        return f"| {self.title} | {self.ranks} | {held} | {cells} | {host} |\n"


ROWS = (
    Row("vicuna-7b", "Vicuna-7B", 1, TEN_BYTES),
    Row("vicuna-7b", "Vicuna-7B", 1, EIGHT_BYTES),
    Row("vicuna-7b", "Vicuna-7B", 1, TEN_BYTES, offload=True),
    Row("vicuna-7b", "Vicuna-7B", 8, ""),
    Row("llama-3.1-8b", "Llama-3.1-8B", 1, EIGHT_BYTES),
    Row("llama-3.1-8b", "Llama-3.1-8B", 8, ""),
    Row("qwen2.5-14b", "Qwen2.5-14B", 8, ""),
    Row("qwen2.5-14b", "Qwen2.5-14B", 8, TEN_BYTES),
    Row("qwen2.5-32b", "Qwen2.5-32B", 8, ""),
    Row("qwen2.5-32b", "Qwen2.5-32B", 8, TEN_BYTES),
    Row("qwen2.5-32b", "Qwen2.5-32B", 8, TEN_BYTES, offload=True),
)


def _tokens(plan: MemoryPlan | None) -> str:
    return "-" if plan is None else f"{plan.work.max_seqlen / 1000:,.0f}k"


def with_table(page: str) -> str:
    """Return the page with the table between the two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    head = f"| model | GPUs | state | {' | '.join(COLUMNS)} | GiB of the host a rank, with both |\n"
    rule = "|---|---|---|" + "---|" * (len(COLUMNS) + 1) + "\n"
    lines = "".join(row.line() for row in ROWS)
    return f"{before}{BEGIN}\n{head}{rule}{lines}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(arguments).check
    page = PAGE.read_text("utf-8")
    expected = with_table(page)
    if expected == page:
        return 0
    print(f"{PAGE.relative_to(ROOT)}: another table of longest rows")
    if not check:
        PAGE.write_text(expected, "utf-8")
    return 1 if check else 0


if __name__ == "__main__":
    sys.exit(main())
