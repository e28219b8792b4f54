"""FastChat's data module and the Hugging Face Trainer against fastsft on the CPU in float32, in alternation.

usage: python benchmarks/bench_train.py --workload full --size 256x4 [--pairs 3] ...

Both sides get the same flags, the same random model, the same conversations; their losses must agree at
every step. Reported as ours / baseline: real tokens (not padding) per second after the first
`--warm_up_steps`, peak resident memory, seconds from process start to the end of the first optimizer step.
Needs the extra [bench].
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fastsft.cli.demo_model import small_config, write_random_model
from harness import Run, check_losses, paired, run_json, write_result
from workloads import make

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "tests" / "golden"
DATA = {
    "full": "sharegpt_multi_turn.json",
    "multi_turn": "sharegpt_multi_turn.json",
    "dummy": "dummy_conversation.json",
}
SIZES = {
    "256x4": {"hidden_size": 256, "num_layers": 4, "num_heads": 8, "intermediate_size": 688},
    "768x12": {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "intermediate_size": 2048},
}
LOSS_TOLERANCE = 2e-4


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=DATA, required=True)
    parser.add_argument("--size", choices=SIZES, default="256x4")
    parser.add_argument(
        "--data", type=Path, help="ShareGPT file; default: the workload's under tests/golden/conversations"
    )
    parser.add_argument("--tokenizer", type=Path, default=GOLDEN / "tokenizers" / "llama2_nonlegacy")
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
    args.data = args.data or GOLDEN / "conversations" / DATA[args.workload]
    return args


def flags(args: argparse.Namespace, model: Path, data: Path, output: Path) -> list[str]:
    values = {
        "model_name_or_path": model,
        "data_path": data,
        "output_dir": output,
        "model_max_length": args.model_max_length,
        "per_device_train_batch_size": args.batch,
        "gradient_accumulation_steps": args.accumulation,
        "max_steps": args.steps,
        "learning_rate": 1e-4,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def side(script: Path, args: argparse.Namespace, model: Path, data: Path, folder: Path) -> Run:
    output, report = folder / "output", folder / "report.json"
    shutil.rmtree(output, ignore_errors=True)
    watch = ["--report", str(report), "--started", str(time.time()), "--threads", str(args.threads)]
    command = [sys.executable, str(script), *watch, "--", *flags(args, model, data, output)]
    result = run_json(command, report, env={"OMP_NUM_THREADS": str(args.threads)})
    first, last = args.warm_up_steps - 1, args.steps - 1
    seconds = result["times"][last] - result["times"][first]
    tokens = sum(result["tokens"][first + 1 :])
    metrics = {
        "real_tokens_per_second": tokens / seconds,
        "peak_resident_bytes": result["peak_resident_bytes"],
        "first_step_seconds": result["first_step_seconds"],
    }
    return Run(metrics, evidence=result)


def check(args: argparse.Namespace) -> Any:
    def equal(baseline: dict[str, Any], ours: dict[str, Any]) -> None:
        worst = check_losses(baseline["losses"], ours["losses"], LOSS_TOLERANCE)
        if baseline["tokens"] != ours["tokens"]:
            raise RuntimeError(f"tokens a step differ: {baseline['tokens']} against {ours['tokens']}")
        row_tokens = args.model_max_length * args.batch * args.accumulation
        if args.workload == "full" and set(baseline["tokens"]) != {row_tokens}:
            raise RuntimeError(f"rows are not full: {baseline['tokens']}, expected {row_tokens} a step")
        print(f"losses agree within {worst:.1e}; {baseline['tokens']} real tokens a step", flush=True)

    return equal


def main() -> None:
    args = parse()
    shape = SIZES[args.size]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = folder / "model"
        config = small_config(vocab_size=32000, max_positions=args.model_max_length, **shape)
        parameters = write_random_model(model, config)
        shutil.copytree(args.tokenizer, model, dirs_exist_ok=True)
        count = args.batch * args.accumulation * args.steps
        data = make(args.workload, args.data, folder, count, args.model_max_length)
        baseline = HERE / "baselines" / "fastchat_trainer.py"
        results = paired(
            lambda: side(baseline, args, model, data, folder),
            lambda: side(HERE / "fastsft_trainer.py", args, model, data, folder),
            pairs=args.pairs,
            warm_up=0,  # each run warms up by itself: --warm_up_steps
            check=check(args),
        )
    settings = {**vars(args), "parameters": parameters, "config": config, "loss_tolerance": LOSS_TOLERANCE}
    settings |= {"data": args.data.name, "tokenizer": args.tokenizer.name}
    write_result(f"train_{args.workload}_{args.size}", results, settings)


if __name__ == "__main__":
    main()
