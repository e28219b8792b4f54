"""Speed and memory of optimizer steps of a model with random weights, on a GPU or, for a look, on the CPU.

usage: python benchmarks/bench_step.py --model vicuna-7b --workload W1 [--profile trace.json]

Counting: FLOPs a token = 6 x (linear parameters + head), attention
6 x layers x heads x head_dim x sum(len^2) / tokens; MFU against 989 TFLOP/s (dense bf16, H100/H200 SXM).
Tokens are those of the conversations (nothing is padded); the window holds everything of a step, upload and
optimizer included. W1: full rows. W2: lengths and learned tokens of 800 recorded conversations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
import harness
from fastsft import _C
from fastsft.arguments.device_fields import fp8_flag_choices
from fastsft.arguments.fp8 import FP8_SWITCHES, fp8_flags
from fastsft.planning.gpus import gpu_of
from fastsft.planning.memory_plan import BatchShape, EngineSettings, plan_memory
from fastsft.planning.time_model import Prediction, predict, why_not
from fastsft.trainer.profile import chrome_trace

HERE = Path(__file__).parent
PEAK_FLOPS = 989e12
LENGTHS = HERE / "lengths_multi_turn_2048.json"


def workload(name: str, rows: int, longest: int, vocab_size: int) -> tuple[Any, list[int]]:
    """Random tokens with the lengths and learned tokens of a workload, and the lengths. W1 learns all."""
    random = np.random.default_rng(0)
    pairs = [(longest, longest - 1)] * rows
    if name == "W2":
        recorded = json.loads(LENGTHS.read_text())
        order = random.permutation(len(recorded))
        chosen = [recorded[order[i % len(order)]] for i in range(rows)]
        pairs = [(min(n, longest), min(learned, n - 1, longest - 1)) for n, learned in chosen]
    dataset = _C.TokenDataset()
    for length, learned in pairs:
        ids = random.integers(0, vocab_size, length).astype(np.int32)
        dataset.append(ids, [(length - learned, length)])
    return dataset, [length for length, _ in pairs]


def micro_batches(lengths: list[int], budget: int) -> list[np.ndarray]:
    """Rows in order, at most `budget` tokens together."""
    batches: list[list[int]] = []
    room = 0
    for row, length in enumerate(lengths):
        if not batches or length > room:
            batches.append([])
            room = budget
        batches[-1].append(row)
        room -= length
    return [np.array(batch, dtype=np.int64) for batch in batches]


def initialise(engine: Any, device: str) -> None:
    """Normal weights of deviation 0.02, norms one, made on the device tensor by tensor."""
    torch.manual_seed(0)
    for name, shape in engine.parameter_shapes.items():
        value = torch.ones(shape, device=device)
        if len(shape) > 1:
            value = torch.randn(shape, device=device) * 0.02
        engine.set_parameter(name, value)
    engine.publish()


def reserve(engine: Any, lengths: list[int], targets: np.ndarray, batches: list[np.ndarray]) -> None:
    """Memory for the largest micro-batch and for a step, as a trainer does."""
    tokens, labels = np.array(lengths), np.asarray(targets)
    engine.reserve(
        micro_batch=(
            max(int(tokens[b].sum()) for b in batches), max(int(labels[b].sum()) for b in batches),
            max(lengths),
        ),
        step=(int(tokens.sum()), int(labels.sum()), len(batches)),
    )  # fmt: skip


def step_flops(config: dict[str, Any], shapes: dict[str, list[int]], lengths: list[int]) -> float:
    """FLOPs of forward and backward of tokens that are computed, counted as the text above says."""
    matrices = sum(
        int(np.prod(s)) for name, s in shapes.items() if len(s) == 2 and "embed_tokens" not in name
    )
    if "lm_head.weight" not in shapes:
        matrices += int(np.prod(shapes["model.embed_tokens.weight"]))
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    attention = 6.0 * config["num_hidden_layers"] * heads * head_dim * sum(n * n for n in lengths)
    return 6.0 * matrices * sum(lengths) + attention


def peak_memory(device: str) -> int:
    """Bytes in use on the device as its driver sees it; of the process on the CPU."""
    if device == "cpu":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def state_options(options: argparse.Namespace) -> _C.StateOptions:
    """Of one rank, from the options of the same names."""
    return _C.StateOptions(
        compute_dtype="bfloat16" if options.bf16 else "float32", grad_dtype=options.grad_dtype,
        optim_dtype=options.optim_dtype, master_dtype=options.master_dtype, **fp8_flags(options),
    )  # fmt: skip


def prediction(
    options: argparse.Namespace, config: dict[str, Any], lengths: list[int], batches: list[np.ndarray]
) -> Prediction | None:
    """What the time model says of these steps; None on a CPU, and where it says nothing."""
    gpu = gpu_of(torch.device(options.device))
    setting = EngineSettings(
        json.dumps(config), state_options(options), device="cuda", gpu=gpu,
        attention_kernel=options.attention_kernel,
    )  # fmt: skip
    longest, step = max(lengths), sum(lengths)
    tokens = max(sum(lengths[row] for row in batch) for batch in batches)
    work = BatchShape(tokens, tokens, longest, step, step, len(batches))
    plan = plan_memory(setting, options.recompute, tokens, work)
    return None if gpu is None or why_not(plan) else predict(plan, gpu)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Times `options.steps` steps after `options.warm_up`; the record of one row."""
    config = json.loads((HERE / "configs" / f"{options.model}.json").read_text())
    dtype = "bfloat16" if options.bf16 else "float32"
    engine = _C.Engine(
        json.dumps(config), state_options(options), device=options.device, recompute=options.recompute,
        max_positions=options.longest,
    )  # fmt: skip
    engine.use_cudnn(options.attention_kernel == "cudnn")
    initialise(engine, options.device)
    dataset, whole = workload(options.workload, options.rows, options.longest, config["vocab_size"])
    lengths = [length - 1 for length in whole]  # nothing is learned from the last token: it is not computed
    batches = micro_batches(lengths, options.micro_batch_tokens)
    targets = dataset.target_counts()
    weights = [np.full(len(batch), 1.0 / targets.sum()) for batch in batches]
    reserve(engine, lengths, targets, batches)
    if options.tune_gemm:
        for batch, shares in zip(batches, weights, strict=True):
            engine.tune_gemms(dataset, batch, shares)

    def step() -> Any:
        engine.begin_step(dataset, batches, weights, learning_rate=1e-6)
        return engine.take_results(all=False)

    for _ in range(options.warm_up):
        step()
    engine.take_results(all=True)
    times, results, repeats = [], [], []
    for _ in range(options.repeats):
        started, clock = time.perf_counter(), time.strftime("%H:%M:%S")
        for _ in range(options.steps):
            results += step()
        results += engine.take_results(all=True)
        times.append((time.perf_counter() - started) / options.steps)
        repeats.append([clock, times[-1]])  # next to clocks.csv: a power limit shows after some seconds
    if options.profile:
        engine.start_trace(capacity=1_000_000)
        step()
        trace = chrome_trace(engine.stop_trace(), 0, _C.trace_dropped())
        Path(options.profile).write_text(json.dumps(trace))
        engine.take_results(all=True)
    kernels = top_kernels(options, engine, step)
    seconds, tokens = statistics.median(times), sum(lengths)
    predicted = prediction(options, config, lengths, batches)
    flops = step_flops(config, engine.parameter_shapes, lengths)
    return {
        "model": options.model, "workload": options.workload, "device": options.device,
        "compute_dtype": dtype, "master_dtype": options.master_dtype, "moments_dtype": options.optim_dtype,
        "grad_dtype": options.grad_dtype, "recompute": options.recompute, "fp8": fp8_flags(options),
        "attention_kernel": options.attention_kernel, "gains": gains(), "parameters": engine.num_parameters,
        "micro_batches": len(batches), "tokens_per_step": tokens, "mean_length": tokens / len(lengths),
        "seconds_per_step": seconds, "fastest": min(times), "slowest": max(times),
        "tokens_per_second": tokens / seconds, "tflops_per_second": flops / seconds / 1e12,
        "predicted_tokens_per_second": predicted and predicted.tokens_per_second,
        "mfu_of_989_tflops": flops / seconds / PEAK_FLOPS, "predicted_mfu": predicted and predicted.mfu,
        "predicted_seconds_per_token": predicted and predicted.seconds,
        "peak_memory_gib": peak_memory(options.device) / 2**30,
        "engine_memory": engine.memory(), "loss": results[-1].loss, "grad_norm": results[-1].grad_norm,
        "cudnn": torch.backends.cudnn.version(), "repeats": repeats, "top_kernels": kernels,
        "finite": all(result.finite for result in results),
    }  # fmt: skip


def top_kernels(options: argparse.Namespace, engine: Any, step: Any) -> list[dict[str, Any]]:
    """The kernels of one more step that take longest: name, calls, milliseconds, share of all kernels."""
    if not options.top_kernels:
        return []
    activities = torch.profiler.supported_activities()
    with torch.profiler.profile(activities=list(activities)) as profiler:
        step()
        engine.take_results(all=True)
        if options.device != "cpu":
            torch.cuda.synchronize(options.device)
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows) or 1
    if not any(row.self_device_time_total for row in rows):
        print("top kernels: the profiler has seen none")
        return []
    found = [
        {
            "kernel": row.key, "calls": row.count, "ms": round(row.self_device_time_total / 1e3, 3),
            "share": round(row.self_device_time_total / total, 4),
        }
        for row in rows[: options.top_kernels]
    ]  # fmt: skip
    for row in found:
        print(f"{row['share']:>7.2%} {row['ms']:>10.3f} ms {row['calls']:>6} x {row['kernel'][:120]}")
    return found


def gains() -> list[float]:
    """Of each tuned product: times as fast as by cuBLASLt's first proposal."""
    return [round(entry["gain"], 4) for entry in json.loads(_C.tuned_gemms())]


def add_fp8(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of 8-bit linear layers, as in training."""
    parser.set_defaults(fp16=False)
    for name, choices in fp8_flag_choices().items():
        if choices:
            parser.add_argument(f"--{name}", choices=choices, help="as in training")
        else:
            parser.add_argument(f"--{name}", type=int, default=0, help="as in training")
    for name in FP8_SWITCHES:
        parser.add_argument(f"--{name}", action="store_true", help="as in training")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="tiny", help="a file of benchmarks/configs, without .json")
    parser.add_argument("--workload", choices=["W1", "W2"], default="W1")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() and _C.with_cuda else "cpu")
    parser.add_argument("--rows", type=int, default=32, help="conversations a step")
    parser.add_argument("--longest", type=int, default=2048)
    parser.add_argument("--micro_batch_tokens", type=int, default=8192)
    parser.add_argument("--recompute", default="selective")
    parser.add_argument("--grad_dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--optim_dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--master_dtype", choices=["float32", "split"], default="float32")
    add_fp8(parser)
    parser.add_argument("--attention_kernel", choices=["flash2", "cudnn"], default="flash2")
    parser.add_argument("--tune_gemm", action="store_true", help="measure the products before the first step")
    parser.add_argument("--bf16", type=lambda text: text == "True", default=True)
    parser.add_argument("--warm_up", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="steps a repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--top_kernels", type=int, default=0, help="how many kernels of one step to print")
    parser.add_argument("--profile", help="a file for the timeline of one more step")
    parser.add_argument("--out", help="a file for the record; default: results/step_<model>_<workload>.json")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parse(arguments)
    record = {**run(options), "command": " ".join(["python", *sys.argv])}
    record |= {"versions": harness.versions(harness.PACKAGES), "hardware": harness.hardware()}
    if options.device != "cpu":
        record["gpu"] = torch.cuda.get_device_name(options.device)
    default = harness.RESULTS / f"step_{options.model}_{options.workload}.json"
    path = Path(options.out) if options.out else default
    path.write_text(json.dumps(record, indent=1) + "\n")
    for name, value in record.items():
        if name not in ("versions", "hardware", "top_kernels"):
            print(f"{name:<20} {value}")
    if not record["finite"]:
        raise SystemExit(f"the timing is void: a step was not finite, loss {record['loss']}")
    return record


if __name__ == "__main__":
    main()
