"""Takes each barrier and each shuffle out of the kernels in turn: does a check notice?

usage: python -m cuda_on_cpu.mutations

Prints a row of the table of docs/gpu.md for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cuda_on_cpu import build
from cuda_on_cpu.run_sweep import started

SITE = re.compile(r"__syncthreads\(\);|__shfl_xor_sync\(kAllLanes, ([\w.]+), offset\)")
ORDERS = ("FORWARD", "WARP_AHEAD", "WARP_AHEAD_RANDOM")
# What runs through each file.
OPS = {
    "ops/adamw/adamw_cuda.cu": "adamw",
    "ops/adamw8bit/adamw8bit_cuda.cu": "adamw8bit",
    "ops/attention/attention_backward.cu": "attention_backward",
    "ops/attention/attention_cuda.cu": "attention",
    "ops/cuda/column_sums.cu": "bias_backward qk_norm_backward",
    "ops/cuda/reduce.cuh": "rms_norm_backward linear_cross_entropy norm_squared qk_norm adamw8bit",
    "ops/grouped_gemm/tile_product.cuh": "grouped_gemm grouped_weight_gradient",
    "ops/fp8/fp8_cuda.cu": "fp8_quantize_transposed",
    "ops/linear_cross_entropy/linear_cross_entropy_cuda.cu": "linear_cross_entropy",
    "ops/nf4/nf4_cuda.cu": "nf4_dequantize",
    "ops/routing/routing_cuda.cu": "route_tokens",
}


PAGE = build.ROOT / "docs" / "gpu.md"


@dataclass(frozen=True)
class Mutant:
    """The `number`th barrier or shuffle of a file, taken out: `text` is the file without it."""

    file: str
    number: int
    line: str
    text: str

    @property
    def name(self) -> str:
        return f"`{self.file.rpartition('/')[2]}` {self.number}: `{self.line}`"


def mutants() -> Iterator[Mutant]:
    """Every barrier and shuffle of csrc/ops."""
    for path in sorted(path for path in (build.CSRC / "ops").rglob("*") if path.suffix in {".cu", ".cuh"}):
        text = path.read_text()
        for number, match in enumerate(SITE.finditer(text), start=1):
            end = text.index("\n", match.start())
            line = text[text.rindex("\n", 0, match.start()) + 1 : end].strip()
            rest = text[: match.start()] + (match[1] or "") + text[match.end() :]
            yield Mutant(str(path.relative_to(build.CSRC)), number, line, rest)
        sites = text.count("__syncthreads") + text.count("__shfl")
        assert len(SITE.findall(text)) == sites, f"{path}: a barrier or shuffle was not recognised"


def noticed_by(mutant: Mutant) -> str:
    """The first check that notices: "values", "trace", or "nothing"."""
    for kind, orders in (("plain", ORDERS), ("trace", ("FORWARD",))):
        library = str(build.library(kind, {mutant.file: mutant.text}))
        done = started(kind, orders, CUDA_ON_CPU_LIBRARY=library, CUDA_ON_CPU_OPS=OPS[mutant.file])
        if done.returncode != 0:
            assert "FAILED" in done.stdout, done.stderr
            return {"plain": "values", "trace": "trace"}[kind]
    return "nothing"


def row(mutant: Mutant, notices: str) -> str:
    return f"| {mutant.name} | {notices} |"


def rows_of(mutant: Mutant) -> list[str]:
    """The rows of the page that name it."""
    return [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {mutant.name} |")]


def main() -> None:
    for mutant in mutants():
        print(row(mutant, noticed_by(mutant)), flush=True)


if __name__ == "__main__":
    main()
