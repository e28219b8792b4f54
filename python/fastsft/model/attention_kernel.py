"""The kernel that computes attention on a GPU: `--attention_kernel` (docs/gpu.md)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from fastsft.arguments.precision import compute_dtype
from fastsft.ranks.process_group import gather_objects
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.arguments import TrainingArguments

_OF_PACKAGES = {"fa3": "FA3", "fa4": "FA4"}  # as torch names them
_PACKAGE = {"fa3": "flash_attn_3", "fa4": "flash-attn-4"}
_CONVERSATIONS, _LENGTH = 4, 2048  # of the trial
_WORTH = 1.03  # times as fast: less is noise
# Of a kernel's result from flash2's, as a share of its norm: both round bfloat16 a few times (0.4% each).
_MOST_DIFFERENCE = 0.02


class Attends(Protocol):
    """A model and its engine."""

    engine_kind: str

    def engine_config(self) -> dict[str, Any]:
        """The configuration that the engine computes by."""


class Heads(NamedTuple):
    """Of a layer: query heads, key and value heads, elements of each."""

    queries: int
    keys: int
    size: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> Heads:
        """Those of a config.json."""
        queries = int(config["num_attention_heads"])
        size = config.get("head_dim") or config["hidden_size"] // queries
        return cls(queries, int(config.get("num_key_value_heads") or queries), int(size))


class Trial(NamedTuple):
    """Seconds of a forward and backward pass, and their results: [tokens, ...]."""

    seconds: float
    out: torch.Tensor
    grad: torch.Tensor


def settle_attention_kernel(args: TrainingArguments, model: Attends, engine: _C.Engine) -> str | None:
    """Use the kernel that `args` asks for, and return its name; None on a CPU or for transformers' attention.

    Collective: "auto" measures flash2 and cudnn once, on rank 0. ValueError where the kernel is not there.
    """
    name: str = args.attention_kernel
    if model.engine_kind != "native":
        if name not in ("auto", "flash2"):
            raise ValueError(
                f"--attention_kernel {name} is for models that the native engine computes; of this one "
                "transformers does: leave it out"
            )
        return None
    if args.device.type != "cuda":
        return None
    if name == "auto":
        name = _measured(args, Heads.of(model.engine_config()))
    use_attention_kernel(engine, name)
    return name


def use_attention_kernel(engine: _C.Engine, name: str) -> None:
    """From here on. ValueError where the kernel is not there."""
    engine.use_cudnn(name == "cudnn")
    if name in _OF_PACKAGES:
        _activate(name)


def _activate(name: str) -> None:
    """Put a package's kernels in the place of torch's flash attention, for the whole process."""
    from torch.nn.attention import activate_flash_attention_impl

    try:
        activate_flash_attention_impl(_OF_PACKAGES[name])
    except (ImportError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"--attention_kernel {name}: {error}; it needs the package {_PACKAGE[name]}, built for this GPU: "
            "install it, or use --attention_kernel flash2"
        ) from error


def _measured(args: TrainingArguments, heads: Heads) -> str:
    dtype = getattr(torch, compute_dtype(args))
    if dtype == torch.float32 or args.full_determinism:
        return "flash2"
    name, line = gather_objects(faster_kernel(heads, dtype, args.device))[0]
    tell(line)
    return name


def faster_kernel(heads: Heads, dtype: torch.dtype, device: torch.device) -> tuple[str, str]:
    """ "flash2" or "cudnn", and a line about the trial.

    Four conversations of 2,048 tokens of random numbers. flash2 where the two do not agree.
    """
    flash, cudnn = (trial(heads, dtype, device, use_cudnn=use) for use in (False, True))
    apart = _difference((cudnn.out, cudnn.grad), (flash.out, flash.grad))
    if not apart <= _MOST_DIFFERENCE:  # NaN is not
        return "flash2", (
            f"attention by flash2: results of cudnn are {apart:.1%} away (at most {_MOST_DIFFERENCE:.0%} is "
            "rounding)"
        )
    ratio = flash.seconds / cudnn.seconds
    name = "cudnn" if ratio >= _WORTH else "flash2"
    return name, (
        f"attention by {name}: cudnn takes {cudnn.seconds * 1e3:.2f} ms, flash2 {flash.seconds * 1e3:.2f} ms "
        f"for {_CONVERSATIONS * _LENGTH:,} tokens of a layer"
    )


def _difference(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> float:
    """The greatest of relative differences; NaN where one is."""
    norm = torch.linalg.vector_norm
    pairs = zip(ones, others, strict=True)
    parts = [norm(one.float() - other.float()) / norm(other.float()) for one, other in pairs]
    return float(torch.stack(parts).max())


def trial(
    heads: Heads, dtype: torch.dtype, device: torch.device, *, use_cudnn: bool, repeats: int = 5
) -> Trial:
    """One layer's attention; the fastest of `repeats`, after one that compiles."""
    tokens, size = _CONVERSATIONS * _LENGTH, heads.size
    generator = torch.Generator(device).manual_seed(0)

    def normal(columns: int) -> torch.Tensor:
        return torch.randn(tokens, columns, device=device, generator=generator).to(dtype)

    qkv, grad_out = normal((heads.queries + 2 * heads.keys) * size), normal(heads.queries * size)
    out, grad = torch.empty_like(grad_out), torch.empty_like(qkv)
    lse = torch.empty(heads.queries, tokens, device=device)
    ends = torch.arange(_CONVERSATIONS + 1, device=device, dtype=torch.int32) * _LENGTH
    shape = (heads.queries, heads.keys, size**-0.5, 0)
    ops, seconds = torch.ops.fastsft, []
    for _ in range(1 + repeats):
        begin = _now(device)
        ops.attention(qkv, ends, *shape, out, lse, _LENGTH, 0.0, use_cudnn)
        ops.attention_backward(grad_out, qkv, out, lse, ends, *shape, grad, _LENGTH, 0.0, use_cudnn)
        seconds.append(_now(device) - begin)
    return Trial(min(seconds[1:]), out, grad)


def _now(device: torch.device) -> float:
    """Seconds, when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
