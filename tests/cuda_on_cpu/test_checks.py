"""The checks of the emulation find what is planted; the kernels themselves pass all of them."""

from __future__ import annotations

import re

import pytest

from cuda_on_cpu import build
from cuda_on_cpu.mutations import OPS, Mutant, mutants, noticed_by, row, rows_of
from cuda_on_cpu.run_sweep import started

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(build.missing() is not None, reason=build.missing() or ""),
]

# Name: (file, old text, new text, build that must notice, what it says).
PLANTED = {
    "shared memory two floats short": (
        "ops/attention/attention_cuda.cu", "(2 * Tile::kTileFloats + Tile::kScoreFloats) * 4;",
        "(2 * Tile::kTileFloats + Tile::kScoreFloats - 2) * 4;", "sanitized", "heap-buffer-overflow",
    ),
    "one element past the end": (
        "ops/adamw/adamw_cuda.cu", "if (rest < args.count) update", "if (rest < args.count + 1) update",
        "sanitized", "heap-buffer-overflow",
    ),
    "all threads add to one sum": (
        "ops/linear_cross_entropy/linear_cross_entropy_cuda.cu", "if (threadIdx.x == 0) *total += sum;",
        "*total += sum;", "trace", "two writes",
    ),
    "a lane leaves before a shuffle": (
        "ops/cuda/reduce.cuh", "  value = warp_sum(value);", "  if (threadIdx.x % 32 == 7) return value;\n"
        "  value = warp_sum(value);", "plain", "a shuffle's mask names a lane that has returned",
    ),
    "a barrier that half of the block reaches": (
        "ops/adamw/adamw_cuda.cu", "  __syncthreads();", "  if (threadIdx.x < 128) __syncthreads();", "plain",
        "before a barrier",
    ),
    "more memory than asked for": (
        "ops/attention/attention_backward.cu", "allow_shared_memory(key_kernel<T, kDim>, kKeyBytes);", "",
        "plain", "bytes of dynamic shared memory",
    ),
    "more threads than the bound": (
        "ops/linear_cross_entropy/linear_cross_entropy_cuda.cu",
        "(kThreads) cross_entropy_kernel", "(kThreads / 2) cross_entropy_kernel",
        "plain", "launch bounds 256",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["sanitized", "trace"])
def test_every_call_passes_the_checks(kind: str) -> None:
    build.library(kind)
    done = started(kind, ("FORWARD", "WARP_AHEAD_RANDOM"))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    counted = re.search(r"(\d+) calls, 0 failed, (\d+) accesses", done.stdout)
    assert counted is not None and int(counted[1]) > 100
    assert kind != "trace" or int(counted[2]) > 1_000_000


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_found(name: str) -> None:
    file, old, new, kind, says = PLANTED[name]
    text = (build.CSRC / file).read_text()
    assert text.count(old) == 1
    library = str(build.library(kind, {file: text.replace(old, new)}))
    done = started(kind, ("FORWARD",), CUDA_ON_CPU_LIBRARY=library, CUDA_ON_CPU_OPS=OPS[file])
    assert done.returncode != 0 and says in done.stdout + done.stderr, (
        done.stdout[-2000:] + done.stderr[-2000:]
    )


@pytest.mark.parametrize("mutant", list(mutants()), ids=lambda mutant: mutant.name)
def test_a_barrier_that_is_taken_out_is_noticed_as_the_page_says(mutant: Mutant) -> None:
    notices = noticed_by(mutant)
    assert notices != "nothing"
    assert rows_of(mutant) == [row(mutant, notices)]
