"""`fastsft plan`: the memory of a run, before anything is bought or started."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from fastsft.device_memory import USABLE_SHARE, available_host_memory, size_text
from fastsft.launcher import Launch
from fastsft.memory_plan import USEFUL_TOKENS, Setting, Wish, Workload, choose_plan
from fastsft.model_directory import parse_size
from fastsft.reporting.memory_table import memory_table
from fastsft.sharding_arguments import fsdp_tokens, node_size, strategy_of


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fastsft plan", description=__doc__)
    parser.add_argument("--model", required=True, help="model directory, config.json or hub name")
    parser.add_argument("--world_size", type=int, default=1, help="ranks that train together")
    parser.add_argument("--local_world_size", type=int, help="ranks of one machine; default: all")
    parser.add_argument("--memory", help="of one device, as 80GiB; default: this machine's free RAM by ranks")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda with --memory, else cpu")
    parser.add_argument("--fsdp", default="", help="as in training: full_shard, hybrid_shard offload, ...")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 compute over fp32 weights")
    parser.add_argument("--recompute", default="auto", help="auto, none, selective, gate_up or block")
    parser.add_argument("--micro_batch_tokens", type=int, help="default: what fits and is useful")
    parser.add_argument("--model_max_length", type=int, default=2048, help="longest conversation in tokens")
    parser.add_argument("--micro_batches", type=int, default=1, help="of one rank in one step")
    parser.add_argument("--json", action="store_true", help="the plan as JSON")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the plan; 1 when nothing fits, with what would."""
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        setting, memory = _setting(args), _memory(args)
        wish = Wish(
            args.recompute, args.micro_batch_tokens, args.model_max_length,
            USEFUL_TOKENS[setting.device] * args.micro_batches,
        )  # fmt: skip
        plan = choose_plan(
            setting,
            wish,
            lambda budget: Workload.full(
                max(budget, args.model_max_length), args.model_max_length, args.micro_batches
            ),
            memory,
        )
    except ValueError as error:
        print(f"fastsft plan: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps({"parts": plan.parts, "outside": plan.outside, "total": plan.total, "memory": memory,
                          "recompute": plan.recompute, "micro_batch_tokens": plan.token_budget}))  # fmt: skip
        return 0
    ranks = f"{args.world_size} rank{'s' if args.world_size > 1 else ''}"
    print(f"{args.model}: {setting.strategy} on {ranks}, {setting.compute_dtype}, {setting.device}")
    print(f"micro-batches of {plan.token_budget:,} tokens, recompute {plan.recompute}\n")
    print("\n".join(memory_table(plan, memory)))
    if setting.device == "cuda":
        print(f"\nleft for kernels, NCCL and the context: {size_text(memory / USABLE_SHARE - memory)}")
    return 0


def _setting(args: argparse.Namespace) -> Setting:
    from fastsft.model import CausalLM, stretch_positions

    for name in ("world_size", "model_max_length", "micro_batches"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name}: expected at least 1, got {getattr(args, name)}")
    model = CausalLM.from_pretrained(args.model.removesuffix("/config.json"))
    stretch_positions(model.config, args.model_max_length)
    strategy = strategy_of(fsdp_tokens(args.fsdp)) if args.world_size > 1 else "no_shard"
    device = args.device or ("cuda" if args.memory else "cpu")
    dtype = "bfloat16" if args.bf16 else "float32"
    place = Launch(world_size=args.world_size, local_world_size=args.local_world_size or args.world_size)
    return Setting(
        json.dumps(model.config),
        strategy,
        dtype,
        args.world_size,
        device,
        node_size=node_size(strategy, {}, place),
        offload="offload" in fsdp_tokens(args.fsdp),
    )


def _memory(args: argparse.Namespace) -> int:
    if args.memory:
        try:
            return int(parse_size(args.memory) * USABLE_SHARE)
        except ValueError:
            raise ValueError(f'--memory: expected a size like "80GiB", got "{args.memory}"') from None
    return int(available_host_memory() / (args.local_world_size or args.world_size) * USABLE_SHARE)
