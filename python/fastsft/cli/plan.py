"""`fastsft plan`: the memory of a run and, with --gpu, its speed, before anything is bought or started."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from fastsft.arguments.device_fields import (
    PrecisionArguments,
    attention_kernels,
    check_activations,
    fp8_flag_choices,
    state_flag_choices,
)
from fastsft.arguments.engine_flags import (
    OPTIMIZERS,
    check_reductions,
    fsdp_settings,
    fsdp_tokens,
    node_size,
    state_options,
    strategy_of,
)
from fastsft.arguments.fp8 import FP8_SWITCHES
from fastsft.arguments.lora import LoraArguments
from fastsft.arguments.parsing.options import MODEL_NAMES, FieldAction, fields_on_line, parse_bool
from fastsft.arguments.values import parse_size
from fastsft.cli.command_parser import CommandParser
from fastsft.cli.config_flags import add_config, plan_values, use_config
from fastsft.cli.places import with_flags
from fastsft.cli.trust import add_trust
from fastsft.lora.attach import with_adapters
from fastsft.lora.lighter import lighter_methods
from fastsft.model.causal_lm import CausalLM
from fastsft.model.engine_choice import model_of
from fastsft.model.model_config import config_directory, model_config
from fastsft.planning.devices import available_host_memory, size_text, usable_memory
from fastsft.planning.gpus import GPUS, Gpu, build_note, gpu_named, named_memory
from fastsft.planning.longest_row import longest_row
from fastsft.planning.memory_plan import BatchShape, EngineSettings, MemoryPlan
from fastsft.planning.offers import Methods
from fastsft.planning.plan_choice import choose_plan
from fastsft.planning.plan_request import USEFUL_TOKENS, MemoryBudget, PlanRequest
from fastsft.reporting.plan_lines import how_held, memory_table, speed_lines, speed_record
from fastsft.runtime.hub_models import expanded
from fastsft.runtime.launch import Launch

# LoRA flags that affect memory. Dropout affects memory only for adapters on experts.
_LORA = ("lora_r", "lora_dropout", "lora_target_modules", "lora_bias", "lora_modules_to_save", "q_lora")
_RECOMPUTE = ("auto", "none", "selective", "gate_up", "block")


def plan_parser() -> argparse.ArgumentParser:
    """Return the parser of `fastsft plan`."""
    parser = CommandParser(prog="fastsft plan", description=__doc__)
    parser.add_argument(
        *MODEL_NAMES, dest="model", metavar="DIR", required=True,
        help="model directory, its config.json or hub name",
    )  # fmt: skip
    add_config(parser)
    parser.add_argument("--world_size", "--gpus", type=int, default=1, help="ranks that train together")
    parser.add_argument(
        "--context_parallel_size", type=int, default=1, help="ranks that share the tokens of a micro-batch"
    )
    parser.add_argument("--local_world_size", type=int, help="ranks of one machine; default: all")
    parser.add_argument(
        "--gpu",
        help="such as H100 (an unknown name lists all); predicts the speed, and --memory is that GPU's "
        "if it is not given",
    )
    parser.add_argument("--memory", help="of one device, as 80GiB; default: this machine's free RAM by ranks")
    parser.add_argument(
        "--host_memory", help="of one machine, as 1TiB, for what is offloaded; default: not looked at"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda with --memory, else cpu")
    parser.add_argument("--fsdp", default="", help='as in training, such as "hybrid_shard offload"')
    parser.add_argument("--fsdp_config", help="as in training; hybrid_shard_size and cpu_offload count")
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        parser.add_argument(
            f"--{name}", type=parse_bool, nargs="?", const=True, default=False, metavar="True|False",
            help=f"{dtype} compute over fp32 weights",
        )  # fmt: skip
    parser.add_argument(
        "--engine", choices=("auto", "native", "generic"), default="auto", help="as in training"
    )
    _add_state_flags(parser)
    parser.add_argument("--optim", choices=tuple(OPTIMIZERS), default="adamw_torch", help="as in training")
    _add_lora_flags(parser)
    add_trust(parser)
    parser.add_argument("--recompute", choices=_RECOMPUTE, default="auto", help="as in training")
    parser.add_argument("--tile_tokens", type=int, help="as in training")
    parser.add_argument(
        "--offload_inputs",
        type=parse_bool,
        nargs="?",
        const=True,
        metavar="True|False",
        help="as in training",
    )
    parser.add_argument("--micro_batch_tokens", type=int, help="default: what fits and is useful")
    parser.add_argument(
        "--model_max_length", type=int, default=2048,
        help="longest conversation in tokens; default 2048, where training has 512",
    )  # fmt: skip
    parser.add_argument("--micro_batches", type=int, default=1, help="of one rank in one step")
    parser.add_argument("--json", action="store_true", help="the plan as JSON")
    return parser


def _add_state_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how parameters, gradients and optimizer state are held."""
    defaults = {field.name: field.default for field in fields(PrecisionArguments)}
    for name, choices in state_flag_choices().items():
        parser.add_argument(f"--{name}", choices=choices, default=defaults[name], help="as in training")
    for name, choices in fp8_flag_choices().items():
        taken: dict[str, Any] = {"choices": choices} if choices else {"type": int}
        parser.add_argument(f"--{name}", default=defaults[name], help="as in training", **taken)
    for name in FP8_SWITCHES:
        parser.add_argument(
            f"--{name}", type=parse_bool, nargs="?", const=True, default=defaults[name], metavar="True|False",
            help="as in training",
        )  # fmt: skip
    parser.add_argument(
        "--attention_kernel", choices=attention_kernels(), default=defaults["attention_kernel"],
        help="as in training",
    )  # fmt: skip
    parser.add_argument(
        "--sync_each_batch", type=parse_bool, nargs="?", const=True, metavar="True|False",
        help="as in training; default: once a step where --micro_batches are several and it fits",
    )  # fmt: skip


def _add_lora_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lora", type=parse_bool, nargs="?", const=True, default=False, metavar="True|False",
        help="adapters next to a frozen model", action=FieldAction,
    )  # fmt: skip
    usual = LoraArguments()
    for name in _LORA:
        value = getattr(usual, name)
        parser.add_argument(
            f"--{name}", default=value, help="as in training", action=FieldAction, **_taken(value)
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan and return 0; if no plan fits, print changes that would fit and return 1."""
    parser = plan_parser()
    words = with_flags(sys.argv[1:] if arguments is None else arguments, MODEL_NAMES)
    from_file = use_config(parser, words, plan_values)
    args = parser.parse_args(words)
    args.given = fields_on_line(args) | from_file
    try:
        model, setting = open_setting(args)
        room = _room(args, setting.device)
        plan = plan_of_full_rows(args, setting, room, lighter_methods(model, setting))
        longest = longest_row(setting, _request(args, setting), room, args.micro_batches)
    except ValueError as error:
        print(f"fastsft plan: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(_record(plan, room, longest)))
    else:
        _print_plan(plan, room, args)
        if longest:
            shared = args.context_parallel_size
            ranks = f" a rank, on {setting.world_size} ranks" if setting.world_size > 1 else ""
            ranks = f" on {shared} of {setting.world_size} ranks together" if shared > 1 else ranks
            print(
                f"\nthe longest row that fits: {longest.work.max_seqlen:,} tokens{ranks} "
                f"(recompute {longest.how_computed})"
            )
    return 0


def _record(plan: MemoryPlan, room: MemoryBudget, longest: MemoryPlan | None) -> dict[str, Any]:
    """Return the plan as `--json` prints it."""
    return {
        "longest_row": longest.work.max_seqlen if longest else None,
        "parts": plan.parts, "outside": plan.outside, "total": plan.total, "host": plan.host,
        "staging": plan.staging, "memory": room.device, "recompute": plan.recompute,
        "micro_batch_tokens": plan.token_budget, "sync_each_batch": plan.setting.state.sync_each_batch,
        "tile_tokens": plan.setting.state.tile_tokens, "offload_inputs": plan.setting.state.offload_inputs,
        "keep_fp8_weights": plan.setting.state.keep_fp8_weights,
        **speed_record(plan),
    }  # fmt: skip


def _print_plan(plan: MemoryPlan, room: MemoryBudget, args: argparse.Namespace) -> None:
    setting = plan.setting
    print(f"{args.model}: {how_held(plan.setting)}, {setting.device}")
    if setting.generic is not None:
        print("generic engine: parameters, gradients and optimizer are exact, the rest is an estimate")
        if setting.world_size > 1:
            whole = size_text(setting.generic.whole_bytes())
            print(f"embeddings and head (what belongs to no layer) are whole on each rank in a step: {whole}")
    print(f"micro-batches of {plan.token_budget:,} tokens, recompute {plan.how_computed}\n")
    print("\n".join(memory_table(plan, room)))
    if setting.device == "cuda":
        left = parse_size(args.memory) - room.device if args.memory else 0
        print(f"\nleft for NCCL, evaluation and saving: {size_text(left)}" if left else "")
    if setting.gpu:
        print("\n".join(speed_lines(plan)))
        if note := build_note(setting.gpu):
            print(note)


def plan_of_full_rows(
    args: argparse.Namespace, setting: EngineSettings, room: MemoryBudget, methods: Methods = ()
) -> MemoryPlan:
    """Return the plan of a run whose rows have --model_max_length tokens. ValueError if none fits.

    methods: other training methods that the error may offer.
    """
    ranks, longest = args.context_parallel_size, args.model_max_length
    return choose_plan(
        setting,
        _request(args, setting),
        lambda budget: BatchShape.full(max(budget * ranks, longest), longest, args.micro_batches).shared_by(
            ranks
        ),
        room,
        methods,
    )


def _request(args: argparse.Namespace, setting: EngineSettings) -> PlanRequest:
    return PlanRequest(
        args.recompute, args.micro_batch_tokens, -(-args.model_max_length // args.context_parallel_size),
        USEFUL_TOKENS[setting.device] * args.micro_batches, args.sync_each_batch,
        tile_tokens=args.tile_tokens, offload_inputs=args.offload_inputs,
        keep_fp8_weights=args.keep_fp8_weights,
    )  # fmt: skip


def _taken(value: object) -> dict[str, Any]:
    """Return the keyword arguments of add_argument for a flag with the default `value`."""
    if isinstance(value, bool):
        return {"type": parse_bool, "nargs": "?", "const": True, "metavar": "True|False"}
    return {"nargs": "+"} if isinstance(value, list) else {"type": type(value)}


def open_setting(args: argparse.Namespace) -> tuple[CausalLM, EngineSettings]:
    """Open the model, and return it with the settings that its memory depends on."""
    args.local_world_size = args.world_size if args.local_world_size is None else args.local_world_size
    sizes = ("world_size", "local_world_size", "model_max_length", "micro_batches", "context_parallel_size")
    for name in sizes:
        if getattr(args, name) < 1:
            raise ValueError(f"--{name}: expected at least 1, got {getattr(args, name)}")
    if args.world_size % args.context_parallel_size:
        raise ValueError(
            f"--context_parallel_size: expected a divisor of --world_size {args.world_size}, got "
            f"{args.context_parallel_size}"
        )
    gpu = _gpu(args)
    model = _model(args)
    if stretched := model.extend_context(args.model_max_length):
        print(f"fastsft plan: warning: {stretched}", file=sys.stderr)
    if args.bf16 and args.fp16:
        raise ValueError("--bf16 and --fp16: expected at most one of the two; leave one out")
    check_reductions(args)
    check_activations(args)
    tokens, settings = fsdp_tokens(args.fsdp), fsdp_settings(args.fsdp_config)
    args.offload = "offload" in tokens or bool(settings.get("cpu_offload"))
    args.sharding_strategy = strategy_of(tokens)
    state = state_options(args)
    given = getattr(args, "given", fields_on_line(args))
    lora = LoraArguments(**{name: getattr(args, name) for name in ("lora", *_LORA) if name in given})
    model = with_adapters(model, args.model, lora)
    place = Launch(world_size=args.world_size, local_world_size=args.local_world_size)
    device = args.device or ("cuda" if args.memory else "cpu")
    setting = EngineSettings(
        json.dumps(model.config),
        state,
        args.world_size,
        device,
        node_size=node_size(state.strategy, settings, place),
        gpu=gpu,
        attention_kernel=args.attention_kernel,
    )
    if args.world_size % args.local_world_size:
        raise ValueError(
            f"--local_world_size: expected a divisor of --world_size {args.world_size}, got "
            f"{args.local_world_size}; machines have the same number of ranks"
        )
    setting = model.with_adapters_of_engine(setting)
    setting.state.check()
    return model, setting.with_generic(model.activation_sizes(state.compute_dtype))


def _model(args: argparse.Namespace) -> CausalLM:
    """Open the model from its configuration alone. ValueError if --engine cannot train the model."""
    path = expanded(args.model)
    code = args.trust_remote_code
    place = path.parent if path.is_file() else config_directory(args.model, has_code=code)
    return model_of(
        model_config(args.model), place, engine=args.engine, trust_remote_code=args.trust_remote_code
    )


def _gpu(args: argparse.Namespace) -> Gpu | None:
    """Return the data sheet of --gpu. If --memory is not given, set it to that GPU's memory."""
    if args.gpu is None:
        return None
    if args.device == "cpu":
        raise ValueError(f"--gpu {args.gpu} is for --device cuda, got --device cpu; leave one out")
    gpu = gpu_named(args.gpu)
    if gpu is None:
        names = ", ".join(gpu.name for gpu in GPUS)
        if many := re.fullmatch(r"(\d+) ?[xX*] ?(.+)", args.gpu):
            raise ValueError(
                f'--gpu: expected the name of one card, got "{args.gpu}"; write --gpu "{many[2]}" '
                f"--world_size {many[1]}"
            )
        raise ValueError(
            f'--gpu: expected a name with one of {names}, got "{args.gpu}"; of another card '
            "give the memory alone, as in --memory 24GiB"
        )
    held, named = gpu.memory / 2**30, named_memory(args.gpu)
    is_its_own = named is not None and f"{named}GB" in gpu.name
    if args.memory is None and named is not None and not is_its_own and not 0.85 < held / named < 1.15:
        raise ValueError(
            f'--gpu: expected a {gpu.name} of {held:g} GiB, got "{args.gpu}"; give its size as '
            f"--memory {named}GiB"
        )
    args.memory = args.memory or f"{held:g}GiB"
    return gpu


def _room(args: argparse.Namespace, device: str) -> MemoryBudget:
    local = args.local_world_size
    free = _size("memory", args.memory) if args.memory else available_host_memory() / local
    host = usable_memory("cpu", _size("host_memory", args.host_memory) / local) if args.host_memory else None
    room = MemoryBudget(usable_memory(device, free), host)
    if args.memory and not room.device:
        raise ValueError(
            f'--memory: of "{args.memory}" nothing is left for a plan: of a GPU 3 GiB are kept for cuBLAS, '
            "NCCL, evaluation and saving; name the memory of the whole GPU"
        )
    return room


def _size(name: str, size: str) -> float:
    if size.strip().replace(".", "").isdigit() and float(size) == 0:
        raise ValueError(f'--{name}: expected more than nothing, like "80GiB", got "{size}"')
    if size.strip().replace(".", "").isdigit():
        raise ValueError(f'--{name}: expected a size with its unit, like "{size.strip()}GiB", got "{size}"')
    try:
        return parse_size(size)
    except ValueError:
        raise ValueError(f'--{name}: expected a size like "80GiB", got "{size}"') from None
