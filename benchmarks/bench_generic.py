"""The generic engine against the native one, the Hugging Face Trainer or FSDP2 (fully_shard), on the CPU.

usage: python benchmarks/bench_generic.py --kind gpt2 --against trainer --ranks 1 --padded_to 512 [--pairs 3]

Both sides run in alternation in processes of their own, with the same random model in float32, the same
conversations in the same order, and losses that must agree at every step. Reported as ours / baseline:
tokens that are not padding per second after the first `--warm_up` steps, also per second of all ranks'
processors (which other processes of the machine disturb less), and the peak resident memory of the
largest rank. `--padded_to`: rows of the baseline, as FastChat pads them (0: to the longest of a micro-batch).
`--ranks 2`: against the Trainer both run what they do without `--fsdp` (DDP, and `no_shard`), against FSDP2
both shard. `--fsdp` is our strategy where another one is wanted. `--ours native`: the native engine in the
place of the generic one. Sides: baselines/generic_sides.py.
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
from transformers import AutoConfig, AutoModelForCausalLM

import bench_step
from harness import Run, check_losses, paired, run_json, write_result

HERE = Path(__file__).parent
SIDES = HERE / "baselines" / "generic_sides.py"
TOLERANCE = 2e-4


def config_of(options: argparse.Namespace) -> dict[str, Any]:
    """The sizes of a model of `--kind`, without dropout."""
    width, layers, heads = options.width, options.layers, options.width // 64
    if options.kind == "gpt2":
        shape = {
            "n_embd": width,
            "n_layer": layers,
            "n_head": heads,
            "n_positions": max(options.longest, options.padded_to),
        }
        return {**shape, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    if options.kind == "opt":
        return {**shape, "ffn_dim": 4 * width, "word_embed_proj_dim": width, "dropout": 0.0,
                "max_position_embeddings": max(options.longest, options.padded_to)}  # fmt: skip
    more = {}
    if options.kind == "mixtral":
        more = {"num_local_experts": options.experts}
    if options.kind == "qwen3_moe":
        inner = 172 * width // 256  # a fourth of a dense model's
        more = {"num_experts": options.experts, "num_experts_per_tok": 4, "moe_intermediate_size": inner,
                "norm_topk_prob": True, "head_dim": 64}  # fmt: skip
    return {**shape, **more, "intermediate_size": 688 * width // 256, "num_key_value_heads": heads,
            "max_position_embeddings": max(options.longest, options.padded_to)}  # fmt: skip


def write_model(options: argparse.Namespace, folder: Path) -> int:
    """A random model; its number of parameters."""
    torch.manual_seed(0)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    shape = AutoConfig.for_model(options.kind, vocab_size=options.vocab, **ids, **config_of(options))
    model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def write_stream(options: argparse.Namespace, path: Path) -> np.ndarray:
    """The conversations of a run; the tokens of each step."""
    rows = options.rows * options.steps
    dataset, lengths = bench_step.workload(options.workload, rows, options.longest, options.vocab)
    ids = np.concatenate([np.asarray(dataset.ids(row)) for row in range(rows)])
    np.savez(path, ids=ids, lengths=np.array(lengths), learned=np.asarray(dataset.target_counts()))
    return np.array(lengths).reshape(options.steps, -1).sum(1)


def strategy(options: argparse.Namespace) -> str:
    """Our `--fsdp`, which does as much as the baseline."""
    if options.fsdp is not None:
        return str(options.fsdp)
    return "full_shard" if options.ranks > 1 and options.against != "trainer" else ""


def side(name: str, options: argparse.Namespace, folder: Path, tokens: np.ndarray) -> Run:
    """One run of `name` on all ranks."""
    report = folder / f"{name}.json"
    values = {
        "side": name, "model": folder / "model", "stream": folder / "stream.npz", "report": report,
        "rows": options.rows, "micro_batch": options.micro_batch, "steps": options.steps,
        "padded_to": options.padded_to, "threads": max(options.threads // options.ranks, 1),
        "longest": options.longest, "fsdp": strategy(options),
    }  # fmt: skip
    words = [word for key, value in values.items() for word in (f"--{key}", str(value))]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={options.ranks}"]
    command = [sys.executable, *(launcher if options.ranks > 1 else []), str(SIDES), *words]
    first = report.with_suffix(".0")
    run_json(command, first, env={"OMP_NUM_THREADS": str(values["threads"])})
    ranks = [json.loads(report.with_suffix(f".{rank}").read_text()) for rank in range(options.ranks)]
    counted = float(tokens[options.warm_up :].sum())
    metrics = {
        "tokens_per_second": counted / sum(ranks[0]["seconds"][options.warm_up :]),
        "tokens_per_processor_second": counted
        / sum(sum(rank["processor_seconds"][options.warm_up :]) for rank in ranks),
        "peak_resident_bytes": float(max(rank["peak_memory"] for rank in ranks)),
    }
    # The Trainer's are those of a rank's own rows, others of all.
    return Run(metrics, evidence=np.mean([rank["losses"] for rank in ranks], axis=0).tolist())


def check(baseline: list[float], ours: list[float]) -> None:
    """The losses of both sides."""
    print(f"losses agree within {check_losses(baseline, ours, TOLERANCE):.1e}", flush=True)


def options_of(description: str | None) -> argparse.Namespace:
    """Sizes of model and data, of this script and bench_generic_steps.py."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kind", choices=["llama", "gpt2", "opt", "mixtral", "qwen3_moe"], default="gpt2")
    parser.add_argument("--experts", type=int, default=4, help="of a layer, in mixtures of them")
    parser.add_argument("--ours", choices=["generic", "native"], default="generic", help="our engine")
    parser.add_argument("--against", choices=["native", "trainer", "fsdp2"], default="trainer")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--fsdp", help="our strategy; without: what the baseline does")
    parser.add_argument("--workload", choices=["W1", "W2"], default="W2", help="W1: full rows")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--padded_to", type=int, default=0)
    parser.add_argument("--rows", type=int, default=8, help="conversations an optimizer step")
    parser.add_argument(
        "--micro_batch", type=int, default=2, help="conversations that the baseline computes at once"
    )
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warm_up", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of all ranks together")
    return parser.parse_args()


def main() -> None:
    options = options_of(__doc__)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        parameters = write_model(options, folder / "model")
        tokens = write_stream(options, folder / "stream.npz")
        results = paired(
            lambda: side(options.against, options, folder, tokens),
            lambda: side(options.ours, options, folder, tokens),
            pairs=options.pairs, warm_up=0, check=check,
        )  # fmt: skip
    record = {**vars(options), "parameters": parameters, "tokens": tokens.tolist()}
    case = f"{options.kind}_{options.workload}_{options.against}_{options.ranks}_{options.padded_to}"
    name = f"{options.ours}_{case}"
    write_result(name, results, record)


if __name__ == "__main__":
    main()
