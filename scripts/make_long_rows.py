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
# tile_tokens and offload_inputs of each column, and True if all ranks share a row
COLUMNS = {
    "neither": (0, False, False), "inputs on the host": (0, True, False), "tiles": (TILE, False, False),
    "both": (TILE, True, False), "both, a row on all GPUs": (TILE, True, True),
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
        plans = []
        for tiles, host, is_shared in COLUMNS.values():
            request = PlanRequest(tile_tokens=tiles, offload_inputs=host)
            shared = setting.with_state(context_parallel_size=self.ranks if is_shared else 1)
            is_other = self.ranks > 1 or not is_shared
            plans.append(longest_row(shared, request, room) if is_other else None)
        return plans

    def line(self) -> str:
        """Return the row of the table."""
        plans = self.plans()
        flags = f"`{self.flags}`" if self.flags else "16 bytes a parameter"
        held = f"{flags}, `offload`" if self.offload else flags
        return f"| {self.title} | {self.ranks} | {held} | {' | '.join(map(_cell, plans))} |\n"


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


def _cell(plan: MemoryPlan | None) -> str:
    """Return the tokens of a row, and the GiB of the host that the inputs of blocks take."""
    if plan is None:
        return "-"
    host = f", {plan.host / 2**30:.0f} GiB" if plan.host >= 2**30 else ""
    return f"{plan.work.max_seqlen / 1000:,.0f}k{host}"


def with_table(page: str) -> str:
    """Return the page with the table between the two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    head = f"| model | GPUs | state | {' | '.join(COLUMNS)} |\n"
    rule = "|---|---|---|" + "---|" * len(COLUMNS) + "\n"
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
