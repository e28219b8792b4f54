"""LoRA on the CPU in float32 against peft with the Hugging Face Trainer, or against our own full fine-tune.

usage: python benchmarks/bench_lora.py --workload full --size 256x4 --against peft [--rank 8] ...

Both sides run in alternation with the same flags, model and conversations (bench_train.py has the options).
Processor time is less disturbed than wall time by what else runs on the machine. Against peft their losses
must agree at every step; with --dropout above 0 they need not, because masks are other ones. Against the
full fine-tune the real tokens per second are compared, and the first loss must agree. With --q_lora both
base models are in 4 bits, peft's by bitsandbytes, whose CPU library needs rows of a multiple of 64 (768x12);
--against lora compares 4 bits with our own adapters on the model as it is. Needs the extra [bench] and peft.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_train import DATA, GOLDEN, HERE, LOSS_TOLERANCE, SIZES, flags
from fastsft.cli.demo_model import small_config, write_random_model
from harness import Run, check_losses, paired, run_json, write_result
from workloads import make


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=DATA, required=True)
    parser.add_argument("--size", choices=SIZES, default="256x4")
    parser.add_argument("--against", choices=["peft", "full", "lora"], default="peft")
    parser.add_argument("--q_lora", action="store_true", help="base models in 4 bits")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--targets", nargs="+", default=["all-linear"])
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--model_max_length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4, help="conversations a micro-batch")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warm_up_steps", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if not 0 < args.warm_up_steps < args.steps:
        parser.error("expected 0 < --warm_up_steps < --steps")
    if args.q_lora != (args.against == "lora") and args.against != "peft":
        parser.error(f"--against {args.against}: expected --q_lora with peft or lora, and with lora always")
    return args


def side(command: list[str], args: argparse.Namespace, words: list[str], folder: Path) -> Run:
    """One run of a script that watches itself; `words` are the flags of its training."""
    report = folder / "report.json"
    shutil.rmtree(folder / "output", ignore_errors=True)
    watch = ["--report", str(report), "--started", str(time.time()), "--threads", str(args.threads)]
    result = run_json(
        [sys.executable, *command, *watch, "--", *words], report, env={"OMP_NUM_THREADS": str(args.threads)}
    )
    first, last = args.warm_up_steps - 1, args.steps - 1
    tokens = sum(result["tokens"][first + 1 :])
    metrics = {
        "real_tokens_per_second": tokens / (result["times"][last] - result["times"][first]),
        "real_tokens_per_processor_second": tokens / (result["processor"][last] - result["processor"][first]),
        "peak_resident_bytes": result["peak_resident_bytes"],
        "first_step_seconds": result["first_step_seconds"],
    }
    return Run(metrics, evidence=result)


def check(args: argparse.Namespace) -> Any:
    steps = args.steps if args.against == "peft" and args.dropout == 0 else 1

    def equal(baseline: dict[str, Any], ours: dict[str, Any]) -> None:
        if args.dropout == 0 and args.against != "lora":
            worst = check_losses(baseline["losses"][:steps], ours["losses"][:steps], LOSS_TOLERANCE)
            print(f"losses of {steps} steps agree within {worst:.1e}", flush=True)
        if baseline["tokens"] != ours["tokens"]:
            raise RuntimeError(f"tokens a step differ: {baseline['tokens']} against {ours['tokens']}")

    return equal


def adapted(args: argparse.Namespace) -> list[str]:
    """fastsft's flags of the adapters."""
    values: dict[str, Any] = {
        "lora": True,
        "lora_r": args.rank,
        "lora_alpha": 2 * args.rank,
        "lora_dropout": args.dropout,
    }
    words = [part for name, value in values.items() for part in (f"--{name}", str(value))]
    words += ["--q_lora", "True"] if args.q_lora else []
    return [*words, "--lora_target_modules", *args.targets]


def main() -> None:
    args = parse()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = folder / "model"
        config = small_config(vocab_size=32000, max_positions=args.model_max_length, **SIZES[args.size])
        parameters = write_random_model(model, config)
        shutil.copytree(GOLDEN / "tokenizers" / "llama2_nonlegacy", model, dirs_exist_ok=True)
        count = args.batch * args.accumulation * args.steps
        source = GOLDEN / "conversations" / DATA[args.workload]
        data = make(args.workload, source, folder, count, args.model_max_length)
        words = flags(args, model, data, folder / "output")
        own = str(HERE / "fastsft_trainer.py")
        baseline = [str(HERE / "baselines" / "peft_trainer.py"), "--rank", str(args.rank)]
        baseline += ["--dropout", str(args.dropout), "--targets", *args.targets]
        baseline += ["--four_bits"] if args.q_lora else []
        plain = adapted(argparse.Namespace(**{**vars(args), "q_lora": False}))
        ours = words + adapted(args)
        theirs = {
            "peft": (baseline, words), "full": ([own], words), "lora": ([own], words + plain),
        }[args.against]  # fmt: skip
        results = paired(
            lambda: side(theirs[0], args, theirs[1], folder),
            lambda: side([own], args, ours, folder),
            pairs=args.pairs,
            warm_up=0,
            check=check(args),
        )
    settings = {**vars(args), "parameters": parameters, "config": config, "loss_tolerance": LOSS_TOLERANCE}
    kind = "q_lora" if args.q_lora else "lora"
    write_result(f"{kind}_{args.against}_{args.workload}_{args.size}", results, settings)


if __name__ == "__main__":
    main()
