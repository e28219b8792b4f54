"""`python -m fastsft.train` without a launcher: one rank a GPU, started through torchrun."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from fastsft.launcher import launch
from fastsft.parser_options import parse_bool

COUNT_VARIABLE = "FASTSFT_NUM_PROCESSES"


def ranks_to_start(words: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """How many ranks this process should start instead of training itself; 1: none but itself.

    As many as FASTSFT_NUM_PROCESSES says, else one for each GPU that a build with CUDA sees; always 1 for a
    process that a launcher started, for --use_cpu and for --help. ValueError for a number below 1.
    """
    env = os.environ if environ is None else environ
    if "RANK" in env or launch(env).world_size > 1 or {"-h", "--help"} & set(words):
        return 1
    chosen = env.get(COUNT_VARIABLE)
    if chosen is not None:
        if not chosen.isdigit() or int(chosen) < 1:
            raise ValueError(f"{COUNT_VARIABLE}: expected a number of ranks, at least 1, got {chosen!r}")
        return int(chosen)
    return 1 if wants_cpu(words) else _visible_gpus()


def wants_cpu(words: Sequence[str]) -> bool:
    """Whether --use_cpu or --no_cuda stands on the command line."""
    wants = False
    for number, word in enumerate(words):
        flag, equals, value = word.replace("-", "_").partition("=")
        if flag not in ("__use_cpu", "__no_cuda"):
            continue
        following = words[number + 1] if number + 1 < len(words) else ""
        value = value if equals else "True" if not following or following.startswith("-") else following
        wants = _is_true(value)
    return wants


def start_ranks(count: int) -> None:
    """Become torchrun, with the same program and words on `count` ranks; does not return."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    program = ["-m", module.name] if module is not None else [sys.argv[0]]
    print(f"no launcher: starting {count} ranks on this machine ({COUNT_VARIABLE} chooses)", flush=True)
    sys.stderr.flush()
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
    os.execv(sys.executable, [sys.executable, *launcher, *program, *sys.argv[1:]])


def _visible_gpus() -> int:
    from fastsft import _C

    if not _C.with_cuda:
        return 1
    import torch

    return max(1, torch.cuda.device_count())


def _is_true(word: str) -> bool:
    try:
        return parse_bool(word)
    except Exception:  # the parser will say so
        return False
