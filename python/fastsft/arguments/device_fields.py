"""Arguments for device, dtypes and sharding, and the engine's state options that follow from the dtypes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, get_type_hints

from fastsft.arguments.fp8 import FP8_FLAGS, FP8_SWITCHES, Fp8Flags, check_fp8
from fastsft.arguments.support import ignored, rejected, supported
from fastsft.arguments.values import union_members

if TYPE_CHECKING:
    from fastsft import _C

Backend = Literal["nccl", "gloo", "mpi", "ccl", "xccl", "hccl", "cncl", "mccl"]
_COMPILED = "performance only: the engine is compiled"
_NO_TPU = "run on CUDA, or use --use_cpu True"
_NO_DDP = "there is no DDP wrapper"


@dataclass
class PrecisionArguments:
    """Device and dtypes of the engine."""

    no_cuda: bool = supported(False, "old name of use_cpu")
    use_cpu: bool = supported(False, "train on the CPU")
    use_mps_device: bool = rejected(False, "GPU of Apple", _NO_TPU)
    tpu_num_cores: int | None = rejected(None, "cores of a TPU", _NO_TPU)
    tpu_metrics_debug: bool = rejected(False, "metrics of a TPU", _NO_TPU)
    engine: Literal["auto", "native", "generic"] = supported(
        "auto",
        "what computes a model: native kernels for the families that have them, or transformers' own forward "
        "and backward; auto: native where it can",
    )
    bf16: bool = supported(False, "bfloat16 compute over fp32 weights")
    fp16: bool = supported(
        False,
        "float16 compute over fp32 weights, with the loss scale of torch.amp.GradScaler; for GPUs without "
        "bfloat16",
    )
    initial_loss_scale: float = supported(65536.0, "of --fp16 True: what multiplies the first step's loss")
    loss_scale_window: int = supported(
        2000, "of --fp16 True: steps without an overflow after which it doubles"
    )
    fp16_opt_level: str = ignored("O1", "level of Apex", "there is no Apex")
    half_precision_backend: Literal["auto", "apex", "cpu_amp"] = ignored(
        "auto", "library of mixed precision", "leave it out: the engine has its own", only=("auto",)
    )
    fp16_backend: Literal["auto", "apex", "cpu_amp"] = ignored(
        "auto", "old name of half_precision_backend", "leave it out: the engine has its own", only=("auto",)
    )
    tf32: bool | None = supported(None, "TF32 in products of fp32 matrices on a GPU")
    full_determinism: bool = supported(
        False, "GPU kernels whose bits do not depend on timing; the CPU's never do"
    )
    gradient_checkpointing: bool = supported(False, "compute activations again where memory needs it")
    gradient_checkpointing_kwargs: dict[str, Any] | str | None = ignored(
        None, "options of torch's checkpointing", "a detail of torch's autograd, which does not run here"
    )
    recompute: Literal["auto", "none", "selective", "gate_up", "block"] = supported(
        "auto", "what the backward pass computes again"
    )
    tile_tokens: int | None = supported(
        None,
        "the most tokens for which norms, linear layers and MLPs compute at once; 0: a whole micro-batch; "
        "default: 0, or as many as make long rows fit",
    )
    offload_inputs: bool | None = supported(
        None,
        "on a GPU with --recompute block: inputs of blocks are in page-locked host memory from forward to "
        "backward; default: if long rows fit only so",
    )
    attention_kernel: Literal["auto", "flash2", "fa3", "fa4", "cudnn"] = supported(
        "flash2",
        "attention on a GPU: flash2 of torch; cudnn; fa3 and fa4, where their packages are; auto measures "
        "flash2 and cudnn once and takes the faster",
    )
    tune_gemm: bool = supported(
        False,
        "on a GPU, time cuBLASLt's algorithms for the matrix products of a step before the first one, take "
        "the fastest, and keep them in checkpoints",
    )
    grad_dtype: Literal["float32", "bfloat16"] = supported(
        "float32", "dtype of the accumulated gradient; bfloat16 saves 2 bytes a parameter"
    )
    optim_dtype: Literal["float32", "bfloat16"] = supported(
        "float32",
        "dtype of AdamW's moments; bfloat16, rounded stochastically, saves 4 bytes a parameter",
    )
    master_dtype: Literal["float32", "split"] | None = supported(
        None,
        "masters of --bf16 True, where split is the default: it keeps the 16 bits that the bfloat16 weights "
        "lack, the same numbers in 2 bytes less a parameter",
    )
    fp8: Literal["rowwise", "tensorwise"] | None = supported(
        None,
        "8-bit floats in the products of the blocks' linear layers, with --bf16 True: a scale for each token "
        "and row, or one for each matrix; embedding and head stay in bfloat16, and weight gradients "
        "without --fp8_wgrad",
    )
    fp8_format: Literal["e4m3", "hybrid"] | None = supported(
        None,
        "of --fp8: e4m3 for all operands, or hybrid, which has output gradients in e5m2; as in torchao, e4m3 "
        "with rowwise and hybrid with tensorwise where it is not given",
    )
    fp8_wgrad: bool = supported(
        False,
        "of --fp8: weight gradients are products of 8 bits, too; faster and less accurate",
    )
    num_layers_at_start_in_bf16: int = supported(0, "of --fp8: first blocks that stay in bfloat16")
    num_layers_at_end_in_bf16: int = supported(0, "of --fp8: last blocks that stay in bfloat16")
    keep_fp8_weights: bool | None = supported(
        None,
        "of --fp8: weights stay in 8 bits until they change, so that a step quantises them once and the base "
        "of LoRA never; takes 2 bytes a weight of the blocks' linear layers, and not with full_shard; by "
        "default on a GPU where it fits",
    )
    torch_compile: bool = ignored(False, "torch.compile", _COMPILED)
    torch_compile_backend: str | None = ignored(None, "its back end", _COMPILED)
    torch_compile_mode: str | None = ignored(None, "its mode", _COMPILED)
    torchdynamo: str | None = ignored(None, "old name of torch_compile_backend", _COMPILED)
    torch_empty_cache_steps: int | None = ignored(
        None, "steps between empty_cache", "memory is planned; nothing is returned between steps"
    )
    use_ipex: bool = ignored(False, "Intel's extension", _COMPILED)
    use_liger_kernel: bool | None = ignored(False, "fused Triton kernels", "the engine has its own")
    liger_kernel_config: dict[str, bool] | str | None = ignored(
        None, "their choice", "the engine has its own"
    )
    use_cache: bool = ignored(
        False, "keys and values of generation", "training has none; the saved config says"
    )
    ray_scope: str | None = ignored("last", "hyper-parameter search of Ray", "there is none")
    mp_parameters: str = ignored("", "model parallelism of SageMaker", "there is none", only=("",))


@dataclass
class ShardingArguments:
    """Launch, process groups, FSDP, DeepSpeed."""

    local_rank: int = supported(-1, "rank on this machine, set by the launcher")
    ddp_backend: Backend | None = supported(None, "gloo or nccl; default by device", "others raise")
    ddp_timeout: int = supported(1800, "seconds that a collective may take")
    ddp_find_unused_parameters: bool | None = ignored(None, "a setting of DDP", _NO_DDP)
    ddp_bucket_cap_mb: int | None = ignored(None, "a setting of DDP", _NO_DDP)
    ddp_broadcast_buffers: bool | None = ignored(None, "a setting of DDP", _NO_DDP)
    ddp_static_graph: bool | None = ignored(None, "a setting of DDP", _NO_DDP)
    xpu_backend: str | None = rejected(None, "backend of XPU", "use --ddp_backend nccl or gloo")
    sharded_ddp: str = rejected("", "sharding of fairscale", "use --fsdp full_shard")
    fsdp: list[str] | str | None = supported(
        None, "sharding",
        "a strategy, such as full_shard or hybrid_shard, with offload, auto_wrap (docs/sharding.md)",
    )  # fmt: skip
    fsdp_config: dict[str, Any] | str | None = supported(None, "a JSON file or object")
    sync_each_batch: bool | None = supported(
        None,
        "reduce sharded float32 gradients in every micro-batch; False: keep them whole, 4 bytes per "
        "parameter, and reduce them once per step; default: once where steps accumulate and memory allows",
    )
    context_parallel_size: int = supported(
        1,
        "ranks that share the tokens of a micro-batch, so that longer rows fit; a divisor of the number of "
        "ranks and of the attention heads (docs/sharding.md)",
    )
    fsdp_min_num_params: int = ignored(0, "parameters of a unit", "the engine shards per decoder layer")
    fsdp_transformer_layer_cls_to_wrap: str | None = ignored(
        None, "class of a decoder layer", "the engine shards per decoder layer", quiet=True
    )
    deepspeed: dict[str, Any] | str | None = supported(
        None, "a DeepSpeed JSON file or object", "docs/sharding.md"
    )
    tp_size: int | None = rejected(0, "ranks of tensor parallelism", "leave it unset", neutral=(1,))
    parallelism_config: dict[str, Any] | str | None = rejected(
        None,
        "accelerate's tensor, context and sequence parallelism",
        "leave it unset; ranks share the tokens of long rows with --context_parallel_size",
    )
    _n_gpu: int = field(init=False, repr=False, default=-1)


# Fields of these arguments that are also options of the C++ core's StateOptions, under the same names.
STATE_FLAGS = ("grad_dtype", "optim_dtype", "master_dtype")
# State options with separate float32 master weights: they need the most memory to offload and to save.
FLOAT32_MASTERS = {"compute_dtype": "bfloat16", "master_dtype": "float32"}
# State options of --bf16 True: masters of 16 bits next to the bfloat16 weights.
SPLIT_MASTERS: dict[str, Any] = {"compute_dtype": "bfloat16", "master_dtype": "split"}


def state_flag_choices() -> dict[str, tuple[str, ...]]:
    """Return the allowed values of each field in STATE_FLAGS.

    The first value is the core's default; the last value needs the fewest bytes.
    """
    return {name: _choices(name) for name in STATE_FLAGS}


def fp8_flag_choices() -> dict[str, tuple[str, ...]]:
    """Return the allowed values of each field in FP8_FLAGS but the switches; () for a number."""
    return {name: _choices(name) for name in FP8_FLAGS if name not in FP8_SWITCHES}


def attention_kernels() -> tuple[str, ...]:
    """Return the allowed values of --attention_kernel."""
    return _choices("attention_kernel")


def _choices(name: str) -> tuple[str, ...]:
    literal = union_members(get_type_hints(PrecisionArguments)[name])[0]
    choices: tuple[str, ...] = get_args(literal)
    return choices


class EngineFlags(Fp8Flags, Protocol):
    """Arguments that decide how the engine stores and computes parameters, gradients and optimizer state."""

    @property
    def grad_dtype(self) -> str: ...
    @property
    def optim_dtype(self) -> str: ...
    @property
    def master_dtype(self) -> str | None: ...
    @property
    def optim(self) -> str: ...
    @property
    def sync_each_batch(self) -> bool | None: ...
    @property
    def world_size(self) -> int: ...
    @property
    def context_parallel_size(self) -> int: ...
    @property
    def sharding_strategy(self) -> str: ...
    @property
    def offload(self) -> bool: ...


def compute_dtype(args: EngineFlags) -> str:
    """Return the compute dtype, the dtype of GEMMs and activations: float32, bfloat16 or float16."""
    if args.fp16:
        return "float16"
    return "bfloat16" if args.bf16 else "float32"


def state_flags(args: EngineFlags) -> dict[str, Any]:
    """Return the value of each field in STATE_FLAGS.

    If master_dtype is None, it becomes "split" with --bf16 True, and "float32" otherwise.
    """
    flags = {name: getattr(args, name) for name in STATE_FLAGS}
    default = "split" if args.bf16 else "float32"
    return {**flags, "master_dtype": flags["master_dtype"] or default}


def lower_precision(state: _C.StateOptions) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each flag that lowers the precision of `state` to save memory, and the options that it sets."""
    if state.compute_dtype == "float32":
        yield "--bf16 True", SPLIT_MASTERS
    if state.compute_dtype == "bfloat16" and state.master_dtype == "float32":
        yield "--master_dtype split", {"master_dtype": "split"}
    if state.grad_dtype == "float32" and state.sync_each_batch:
        yield "--grad_dtype bfloat16", {"grad_dtype": "bfloat16"}


class ActivationFlags(Protocol):
    """Arguments that decide which activations are kept, and where."""

    @property
    def recompute(self) -> str: ...
    @property
    def tile_tokens(self) -> int | None: ...
    @property
    def offload_inputs(self) -> bool | None: ...


def check_activations(args: ActivationFlags) -> None:
    """Raise ValueError for a bad size of tiles, and for offloaded inputs next to other kept activations."""
    if args.tile_tokens is not None and args.tile_tokens < 0:
        raise ValueError(
            f"--tile_tokens: expected 0 (no tiles) or a number of tokens, got {args.tile_tokens}"
        )
    if args.offload_inputs and args.recompute not in ("auto", "block"):
        raise ValueError(
            f"--offload_inputs True needs --recompute block, got {args.recompute}, which keeps more than "
            "inputs on the device; leave one of them out"
        )


def check_formats(args: PrecisionArguments) -> None:
    """Raise ValueError for dtypes that exclude each other."""
    if args.fp16 and args.bf16:
        raise ValueError("At most one of fp16 and bf16 can be True, but not both: leave --fp16 or --bf16 out")
    if not 0 < args.initial_loss_scale < math.inf or args.loss_scale_window < 1:
        raise ValueError(
            "expected an --initial_loss_scale above 0 and a --loss_scale_window of at least 1, got "
            f"{args.initial_loss_scale} and {args.loss_scale_window}"
        )
    if args.fp16 and args.master_dtype == "split":
        raise ValueError(
            "--master_dtype split needs --bf16 True: a float16 is not the upper half of a float32; leave it "
            "out"
        )
    if args.attention_kernel in ("fa3", "fa4", "cudnn") and not (args.bf16 or args.fp16):
        raise ValueError(
            f"--attention_kernel {args.attention_kernel} needs --bf16 True or --fp16 True: it has no float32"
        )
    if args.attention_kernel == "cudnn" and args.full_determinism:
        raise ValueError(
            "--attention_kernel cudnn cannot keep --full_determinism True in bounded memory; use flash2"
        )
    check_fp8(args)
    if args.master_dtype == "split" and not args.bf16:
        raise ValueError("--master_dtype split needs --bf16 True: float32 computes with the master itself")
