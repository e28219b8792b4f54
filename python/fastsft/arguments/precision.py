"""Device, number formats, and what is kept or computed again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, get_type_hints

from fastsft.arguments.support import inert, refused, used

_COMPILED = "performance only: the engine is compiled"
_NO_TPU = "run on CUDA, or use --use_cpu True"


@dataclass
class PrecisionArguments:
    """Device and dtypes of the engine."""

    no_cuda: bool = used(False, "old name of use_cpu")
    use_cpu: bool = used(False, "train on the CPU")
    use_mps_device: bool = refused(False, "GPU of Apple", _NO_TPU)
    tpu_num_cores: int | None = refused(None, "cores of a TPU", _NO_TPU)
    tpu_metrics_debug: bool = refused(False, "metrics of a TPU", _NO_TPU)
    engine: Literal["auto", "native", "generic"] = used(
        "auto",
        "what computes a model: native kernels for the families that have them, or transformers' own forward "
        "and backward; auto: native where it can",
    )
    bf16: bool = used(False, "bfloat16 compute over fp32 weights")
    fp16: bool = used(
        False,
        "float16 compute over fp32 weights, with the loss scale of torch.amp.GradScaler; for GPUs without "
        "bfloat16",
    )
    initial_loss_scale: float = used(65536.0, "of --fp16 True: what multiplies the first step's loss")
    loss_scale_window: int = used(2000, "of --fp16 True: steps without an overflow after which it doubles")
    fp16_opt_level: str = inert("O1", "level of Apex", "there is no Apex")
    half_precision_backend: Literal["auto", "apex", "cpu_amp"] = inert(
        "auto", "library of mixed precision", "the engine's", only=("auto",)
    )
    fp16_backend: Literal["auto", "apex", "cpu_amp"] = inert(
        "auto", "old name of half_precision_backend", "the engine's", only=("auto",)
    )
    tf32: bool | None = used(None, "TF32 in products of fp32 matrices on a GPU")
    full_determinism: bool = used(False, "GPU kernels whose bits do not depend on timing; the CPU's never do")
    gradient_checkpointing: bool = used(False, "compute activations again where memory needs it")
    gradient_checkpointing_kwargs: dict[str, Any] | str | None = inert(
        None, "options of torch's checkpointing", "a detail of torch's autograd, which does not run here"
    )
    recompute: Literal["auto", "none", "selective", "gate_up", "block"] = used(
        "auto", "what the backward pass computes again"
    )
    attention_kernel: Literal["auto", "flash2", "fa3", "fa4", "cudnn"] = used(
        "flash2",
        "attention on a GPU: flash2 of torch; cudnn; fa3 and fa4, where their packages are; auto measures "
        "flash2 and cudnn once and takes the faster",
    )
    tune_gemm: bool = used(
        False,
        "on a GPU, time cuBLASLt's algorithms for the matrix products of a step before the first one, take "
        "the fastest, and keep them in checkpoints",
    )
    grad_dtype: Literal["float32", "bfloat16"] = used(
        "float32", "dtype of the accumulated gradient; bfloat16 saves 2 bytes a parameter"
    )
    optim_dtype: Literal["float32", "bfloat16"] = used(
        "float32",
        "dtype of AdamW's moments; bfloat16, rounded stochastically, saves 4 bytes a parameter",
    )
    master_dtype: Literal["float32", "split"] | None = used(
        None,
        "masters of --bf16 True, where split is the default: it keeps the 16 bits that the bfloat16 weights "
        "lack, the same numbers in 2 bytes less a parameter",
    )
    torch_compile: bool = inert(False, "torch.compile", _COMPILED)
    torch_compile_backend: str | None = inert(None, "its back end", _COMPILED)
    torch_compile_mode: str | None = inert(None, "its mode", _COMPILED)
    torchdynamo: str | None = inert(None, "old name of torch_compile_backend", _COMPILED)
    torch_empty_cache_steps: int | None = inert(
        None, "steps between empty_cache", "memory is planned; nothing is returned between steps"
    )
    use_ipex: bool = inert(False, "Intel's extension", _COMPILED)
    use_liger_kernel: bool | None = inert(False, "fused Triton kernels", "the engine has its own")
    liger_kernel_config: dict[str, bool] | str | None = inert(None, "their choice", "the engine has its own")
    use_cache: bool = inert(
        False, "keys and values of generation", "training has none; the saved config says"
    )
    ray_scope: str | None = inert("last", "hyper-parameter search of Ray", "there is none")
    mp_parameters: str = inert("", "model parallelism of SageMaker", "there is none", only=("",))


# The flags that the core's StateOptions has under the same name.
STATE_FLAGS = ("grad_dtype", "optim_dtype", "master_dtype")


def state_flag_choices() -> dict[str, tuple[str, ...]]:
    """Values of each of STATE_FLAGS: the first is the core's default, the last takes the fewest bytes."""
    hints = get_type_hints(PrecisionArguments)
    settled = {name: [hint for hint in get_args(hints[name]) if get_args(hint)] for name in STATE_FLAGS}
    return {name: get_args(hints[name] if not kinds else kinds[0]) for name, kinds in settled.items()}


def attention_kernels() -> tuple[str, ...]:
    """Values of --attention_kernel."""
    return get_args(get_type_hints(PrecisionArguments)["attention_kernel"])


class FormatFlags(Protocol):
    """Arguments that say which number formats a run has."""

    @property
    def bf16(self) -> bool: ...
    @property
    def fp16(self) -> bool: ...
    @property
    def grad_dtype(self) -> str: ...
    @property
    def optim_dtype(self) -> str: ...
    @property
    def master_dtype(self) -> str | None: ...


def state_flags(args: FormatFlags) -> dict[str, str]:
    """The value of each of STATE_FLAGS; a master_dtype of None is "split" with --bf16 True."""
    flags = {name: getattr(args, name) for name in STATE_FLAGS}
    default = "split" if args.bf16 else "float32"
    return {**flags, "master_dtype": flags["master_dtype"] or default}


def compute_dtype(args: FormatFlags) -> str:
    """float32, bfloat16 or float16: what products and activations are computed in."""
    if args.fp16:
        return "float16"
    return "bfloat16" if args.bf16 else "float32"


def check_formats(args: PrecisionArguments) -> None:
    """ValueError for formats that do not go together."""
    if args.fp16 and args.bf16:
        raise ValueError("At most one of fp16 and bf16 can be True, but not both")
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
    if args.master_dtype == "split" and not args.bf16:
        raise ValueError("--master_dtype split needs --bf16 True: float32 computes with the master itself")
