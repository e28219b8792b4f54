"""fastsft against other trainers on the same tokenised conversations, in alternation, on a GPU or the CPU.

usage: python benchmarks/bench_peers.py --model vicuna-7b --workload W2 --peers fastchat liger trl

Every side runs in a process of its own with the same random weights and the same conversations in the same
order, `--rows` an optimizer step, and says how long each step took; the first `--warm_up` are not counted.
Reported as ours / peer: tokens that are not padding per second, MFU (counted as in bench_step.py),
peak memory (of the device as its driver sees it; resident memory on the CPU). Losses of all steps must agree,
else the timing is void. The record names the dtypes of both sides. Peers: baselines/stream_trainer.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
import bench_step
import harness
from fastsft import _C
from harness import Run, check_losses, paired, run_json, write_result

HERE = Path(__file__).parent
TOLERANCE = {"bfloat16": 3e-2, "float32": 2e-4}


def write_stream(options: argparse.Namespace, vocab_size: int, path: Path) -> np.ndarray:
    """The conversations of a run; returns their lengths."""
    rows = options.rows * options.steps
    dataset, lengths = bench_step.workload(options.workload, rows, options.longest, vocab_size)
    ids = np.concatenate([np.asarray(dataset.ids(row)) for row in range(rows)])
    np.savez(path, ids=ids, lengths=np.array(lengths), learned=np.asarray(dataset.target_counts()))
    return np.array(lengths)


class Comparison:
    """The runs of one model and stream."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.config = HERE / "configs" / f"{options.model}.json"
        fields = json.loads(self.config.read_text())
        self.stream = folder / "stream.npz"
        lengths = write_stream(options, fields["vocab_size"], self.stream).reshape(options.steps, -1)
        shapes = {name: list(shape) for name, shape in matrix_shapes(fields).items()}
        self.tokens = lengths.sum(1)
        self.flops = [bench_step.step_flops(fields, shapes, row.tolist()) for row in lengths]
        self.reports: dict[str, Any] = {}

    def run(self, name: str, python: str, script: Path, flags: dict[str, Any]) -> Run:
        options, report = self.options, self.folder / f"{name}.json"
        shared = {
            "stream": self.stream, "config": self.config, "report": report, "rows": options.rows,
            "steps": options.steps, "longest": options.longest, "device": options.device,
            "threads": options.threads, "bf16": options.bf16,
        }  # fmt: skip
        words = [word for key, value in (shared | flags).items() for word in (f"--{key}", str(value))]
        result = run_json([python, str(script), *words, *options.switches.get(name, [])], report)
        self.reports[name] = {key: result[key] for key in ("dtypes", "versions", "settings", "seconds")}
        seconds = sum(result["seconds"][options.warm_up :])
        metrics = {
            "tokens_per_second": float(self.tokens[options.warm_up :].sum()) / seconds,
            "mfu_of_989_tflops": sum(self.flops[options.warm_up :]) / seconds / bench_step.PEAK_FLOPS,
            "peak_memory_bytes": float(result["peak_memory"]),
        }
        return Run(metrics, evidence=result["losses"])

    def ours(self) -> Run:
        options = self.options
        flags = {
            "micro_batch_tokens": options.micro_batch_tokens, "recompute": options.recompute,
            "grad_dtype": options.grad_dtype, "optim_dtype": options.optim_dtype,
            "master_dtype": options.master_dtype,
        }  # fmt: skip
        return self.run("fastsft", sys.executable, HERE / "stream_engine.py", flags)

    def peer(self, name: str) -> Run:
        flags = {"peer": name, "micro_batch": self.options.micro_batch}
        script = HERE / "baselines" / "stream_trainer.py"
        return self.run(name, self.options.peer_python, script, flags)

    def check(self, baseline: list[float], ours: list[float]) -> None:
        tolerance = TOLERANCE["bfloat16" if self.options.bf16 else "float32"]
        print(f"losses agree within {check_losses(baseline, ours, tolerance):.1e}", flush=True)


def matrix_shapes(config: dict[str, Any]) -> dict[str, Any]:
    """Shapes of the matrices that count as FLOPs; no engine is made for it, 7B parameters take a while."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // heads
    qkv = (heads + 2 * config.get("num_key_value_heads", heads)) * head_dim
    inner, vocab = config["intermediate_size"], config["vocab_size"]
    shapes: dict[str, Any] = {"model.embed_tokens.weight": (vocab, hidden)}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        block = {"qkv": (qkv, hidden), "o": (hidden, heads * head_dim), "gate_up": (2 * inner, hidden),
                 "down": (hidden, inner)}  # fmt: skip
        shapes |= {f"{layer}.{name}": shape for name, shape in block.items()}
    return shapes


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="tiny", help="a file of benchmarks/configs, without .json")
    parser.add_argument("--workload", choices=["W1", "W2"], default="W2")
    parser.add_argument("--peers", nargs="+", default=["fastchat"])
    parser.add_argument("--peer_python", default=sys.executable, help="interpreter that has the peers")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() and _C.with_cuda else "cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--bf16", type=lambda text: text == "True", default=True)
    parser.add_argument("--rows", type=int, default=32, help="conversations an optimizer step")
    parser.add_argument("--micro_batch", type=int, default=2, help="conversations a peer computes at once")
    parser.add_argument("--micro_batch_tokens", type=int, default=8192, help="tokens that we compute at once")
    parser.add_argument("--longest", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warm_up", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--recompute", default="selective")
    for name in ("grad_dtype", "optim_dtype", "master_dtype"):
        parser.add_argument(f"--{name}", default="float32")
    parser.add_argument("--checkpointing", nargs="*", default=[], help="peers that recompute blocks")
    parser.add_argument("--padding_free", action="store_true", help="trl without padding; needs flash-attn")
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    options = parser.parse_args(arguments)
    if not 0 < options.warm_up < options.steps or options.rows % options.micro_batch:
        parser.error("expected 0 < --warm_up < --steps, and --rows a multiple of --micro_batch")
    options.switches = {name: ["--checkpointing"] for name in options.checkpointing}
    if options.padding_free:
        options.switches["trl"] = [*options.switches.get("trl", []), "--padding_free"]
    return options


def main(arguments: list[str] | None = None) -> int:
    """1 when a peer failed: out of memory, or other losses; the others are compared all the same."""
    options, failed = parse(arguments), []
    with tempfile.TemporaryDirectory() as temporary:
        comparison = Comparison(options, Path(temporary))
        for name in options.peers:
            try:
                compare(comparison, options, name)
            except (Exception, SystemExit) as error:
                failed.append(name)
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def compare(comparison: Comparison, options: argparse.Namespace, name: str) -> None:
    """fastsft beside one peer, in alternation."""
    results = paired(
        lambda: comparison.peer(name), comparison.ours,
        pairs=options.pairs, warm_up=0, check=comparison.check,
    )  # fmt: skip
    sides = {side: comparison.reports[side] for side in (name, "fastsft")}
    chosen = {key: str(value) for key, value in vars(options).items()}
    record = {**chosen, "tokens": comparison.tokens.tolist(), "sides": sides}
    write_result(f"peers_{options.model}_{options.workload}_{name}", results, record, options.results)


if __name__ == "__main__":
    sys.exit(main())
