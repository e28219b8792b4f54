"""Selects the attention kernel on a GPU, by `--attention_kernel` or by a timed trial (docs/gpu.md)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from fastsft.arguments.device_fields import compute_dtype
from fastsft.model.family import CAP
from fastsft.ranks.process_group import gather_objects
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.arguments import TrainingArguments

_FLASH_IMPLS = {"fa3": "FA3", "fa4": "FA4"}  # names of these kernels in torch
_PACKAGE = {"fa3": "flash_attn_3", "fa4": "flash-attn-4"}
# Conversation lengths in training's order, the longest first: _FULL_ROWS for timing, _UNEVEN for comparing
# results. Most conversations in _UNEVEN end inside a tile of keys. cuDNN computes them in two calls, of 16
# conversations of up to 1,024 tokens and of 32 of up to 128: to 13 and 20 conversations it adds empty ones.
_FULL_ROWS = (2048, 2048, 2048, 2048)
_LONG = (1024, 1000, 1000, 899, 840, 700, 650, 513, 400, 333, 257, 200, 129)
_SHORT = (128, 127, 120, 100, 100, 90, 80, 70, 66, 65, 64, 63, 50, 33, 32, 30, 17, 8, 2, 1)
_UNEVEN = _LONG + _SHORT
_LEAST_SPEEDUP = 1.03  # a smaller speedup may be noise
# Largest accepted difference between a token's result and flash2's, relative to the norm. Both kernels round
# to bfloat16 a few times. If a row is not written, or has another token's result, the difference is 1
# (tests/model/test_attention_kernel.py).
_MOST_DIFFERENCE = 0.1


class Attends(Protocol):
    """The part of a CausalLM that select_attention_kernel reads.

    A protocol, because CausalLM's module imports this module.
    """

    engine_kind: str

    def engine_config(self) -> dict[str, Any]:
        """Return the configuration that the engine computes."""


class Heads(NamedTuple):
    """Query head count, key/value head count, head size, and sliding window (0: none)."""

    queries: int
    keys: int
    size: int
    window: int = 0

    @classmethod
    def of(cls, config: dict[str, Any]) -> Heads:
        """Read the numbers from a config.json."""
        queries = int(config["num_attention_heads"])
        size = config.get("head_dim") or config["hidden_size"] // queries
        window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
        return cls(queries, int(config.get("num_key_value_heads") or queries), int(size), int(window or 0))


class Trial(NamedTuple):
    """One trial's result: its time in seconds, the output and the gradient [tokens, ...]."""

    seconds: float
    out: torch.Tensor
    grad: torch.Tensor


class Choice(NamedTuple):
    """The selected kernel.

    line: a message for the user about the trial. agrees: False if cuDNN's results differed from flash2's, or
    if cuDNN could not be used.
    """

    name: str
    line: str
    agrees: bool


def select_attention_kernel(args: TrainingArguments, model: Attends, engine: _C.Engine) -> Choice | None:
    """Select the kernel of --attention_kernel; for "auto", measure flash2 and cudnn on each rank. Collective.

    Return None if the flag does not apply: on a CPU, in float32, for capped scores (fastsft's own kernels
    compute these), and in the generic engine. All ranks use rank 0's choice, unless cuDNN is wrong on some
    rank. ValueError if the kernel is missing.
    """
    name: str = args.attention_kernel
    if model.engine_kind != "native" and name not in ("auto", "flash2"):
        raise ValueError(
            f"--attention_kernel {name} is for models that the native engine computes; of this one "
            "transformers does: leave it out"
        )
    config = model.engine_config()
    own = args.device.type != "cuda" or compute_dtype(args) == "float32" or bool(config.get(CAP))
    if model.engine_kind != "native" or own:
        return None
    choice = Choice(name, "", True)
    heads, dtype = Heads.of(config), getattr(torch, compute_dtype(args))
    if name == "auto":
        use_attention_kernel(engine, "flash2")
        choice = Choice("flash2", "", True) if args.full_determinism else _measured(heads, dtype, args.device)
    use_attention_kernel(engine, choice.name)
    if name in _FLASH_IMPLS:
        _try_kernel(name, heads, dtype, args.device)
    return choice


def use_attention_kernel(engine: _C.Engine, name: str) -> None:
    """Make the engine use the kernel `name`. fa3 and fa4 are set for the whole process.

    ValueError if the kernel is missing.
    """
    from torch.nn import attention

    engine.use_cudnn(name == "cudnn")
    if name not in _FLASH_IMPLS:
        if attention.current_flash_attention_impl() is not None:
            attention.restore_flash_attention_impl()
        return
    try:
        attention.activate_flash_attention_impl(_FLASH_IMPLS[name])
    except (ImportError, RuntimeError, ValueError) as error:
        raise _missing(name, error) from error


def compile_attention(engine: _C.Engine, shapes: Sequence[int]) -> None:
    """Compile cuDNN's attention for `shapes`, [conversations, longest] of each, before their first use.

    Print nothing if another kernel computes attention on this device. A shape takes seconds.
    """
    begin, compiled, count = time.monotonic(), 0, len(shapes) // 2
    for i in range(count):  # a call for each, so that signals are heard between them
        compiled += engine.compile_attention(shapes[2 * i : 2 * i + 2])
        if i == 0 and compiled:
            tell(f"attention by cudnn: compiling {count} shapes of micro-batches, seconds each")
    if compiled:
        rest = "; flash2 computes the others" if compiled < count else ""
        tell(f"attention by cudnn: compiled {compiled} shapes in {time.monotonic() - begin:.0f} s{rest}")


def _try_kernel(name: str, heads: Heads, dtype: torch.dtype, device: torch.device) -> None:
    # The kernel's package may reject this GPU or head size. Without a trial, only the first step would show
    # that.
    try:
        trial(heads, dtype, device, _UNEVEN, use_cudnn=False, repeats=0)
    except RuntimeError as error:
        raise _missing(name, error) from error


def _missing(name: str, error: Exception) -> ValueError:
    return ValueError(
        f"--attention_kernel {name}: {error}; it needs the package {_PACKAGE[name]}, built for this GPU: "
        "install it, or use --attention_kernel flash2"
    )


def _measured(heads: Heads, dtype: torch.dtype, device: torch.device) -> Choice:
    choices = gather_objects(faster_kernel(heads, dtype, device))
    # Use cudnn only if it is right on all ranks.
    choice = next((choice for choice in choices if not choice.agrees), choices[0])
    tell(choice.line)
    return choice


def faster_kernel(heads: Heads, dtype: torch.dtype, device: torch.device) -> Choice:
    """Choose flash2 or cudnn by running one attention layer on random numbers.

    _FULL_ROWS are timed, and the results for _UNEVEN are compared. The choice is flash2 if the results
    differ, or if cuDNN cannot be used.
    """
    flash = trial(heads, dtype, device, _UNEVEN, use_cudnn=False, repeats=0)
    try:
        passes = (
            trial(heads, dtype, device, _UNEVEN, use_cudnn=True, repeats=more, dirty=True) for more in (0, 1)
        )
        differences = [difference(heads, cudnn, flash) for cudnn in passes]
    except RuntimeError as error:
        if type(error).__name__ in ("OutOfMemoryError", "AcceleratorError"):
            raise
        reason = str(error).strip().partition("\n")[0]
        return Choice("flash2", f"attention by flash2: cudnn cannot be used here ({reason})", agrees=False)
    wrong = [value for value in differences if not value <= _MOST_DIFFERENCE]  # also true for NaN
    if wrong:
        line = (
            f"attention by flash2: results of cudnn are up to {wrong[0]:.0%} away in a token (rounding: "
            f"at most {_MOST_DIFFERENCE:.0%})"
        )
        return Choice("flash2", line, agrees=False)
    flash, cudnn = (trial(heads, dtype, device, _FULL_ROWS, use_cudnn=use) for use in (False, True))
    name = "cudnn" if flash.seconds / cudnn.seconds >= _LEAST_SPEEDUP else "flash2"
    line = (
        f"attention by {name}: cudnn takes {cudnn.seconds * 1e3:.2f} ms, flash2 {flash.seconds * 1e3:.2f} ms "
        f"for {sum(_FULL_ROWS):,} tokens of a layer"
    )
    return Choice(name, line, agrees=True)


def difference(heads: Heads, actual: Trial, reference: Trial) -> float:
    """Return the largest difference between a token's two results, relative to the reference's norm.

    Outputs and gradients are compared. NaN if any value is NaN. Norms below a thousandth of the largest norm
    are raised to that value, because the query of a conversation's first token has no gradient.
    """
    parts = [heads.queries, heads.keys, heads.keys]
    worst = []
    for a, b, sizes in ((actual.out, reference.out, [heads.queries]), (actual.grad, reference.grad, parts)):
        widths = [size * heads.size for size in sizes]
        for left, right in zip(*(torch.split(rows.float(), widths, dim=1) for rows in (a, b)), strict=True):
            norms = torch.linalg.vector_norm(right, dim=1)
            distances = torch.linalg.vector_norm(left - right, dim=1)
            worst.append((distances / norms.clamp_min(1e-3 * float(norms.max()))).max())
    return float(torch.stack(worst).max())


def trial(
    heads: Heads, dtype: torch.dtype, device: torch.device, lengths: tuple[int, ...], *,
    use_cudnn: bool, repeats: int = 5, dirty: bool = False,
) -> Trial:  # fmt: skip
    """Run attention forward and backward over conversations of `lengths`; time the fastest of `repeats`
    passes.

    The first pass compiles and is not timed. dirty: True to fill scratch memory with NaN before each pass.
    This finds a kernel that reads scratch memory before writing to it. Fresh memory is mostly zero, so such a
    kernel would pass without `dirty`, and fail in training.
    """
    tokens, size = sum(lengths), heads.size
    generator = torch.Generator(device).manual_seed(0)

    def normal(columns: int) -> torch.Tensor:
        return torch.randn(tokens, columns, device=device, generator=generator).to(dtype)

    qkv, grad_out = normal((heads.queries + 2 * heads.keys) * size), normal(heads.queries * size)
    out, grad = (torch.full_like(like, torch.nan) for like in (grad_out, qkv))
    lse = torch.full((heads.queries, tokens), torch.nan, device=device)
    ends = torch.tensor([0, *accumulate(lengths)], device=device, dtype=torch.int32)
    shape = (heads.queries, heads.keys, size**-0.5, heads.window)
    ops, max_seqlen, seconds = torch.ops.fastsft, max(lengths), []
    cudnn = cudnn_inputs(heads, lengths, device) if use_cudnn else (None, [])
    for _ in range(1 + repeats):
        if dirty:
            dirty_free_memory(device)
        begin = _now(device)
        ops.attention(qkv, ends, *shape, out, lse, max_seqlen, 0.0, *cudnn)
        if dirty:
            grad.fill_(torch.nan)
            dirty_free_memory(device)
        ops.attention_backward(grad_out, qkv, out, lse, ends, *shape, grad, max_seqlen, 0.0, *cudnn)
        seconds.append(_now(device) - begin)
    return Trial(min(seconds[1:] or seconds), out, grad)


def cudnn_inputs(
    heads: Heads, lengths: Sequence[int], device: torch.device
) -> tuple[torch.Tensor, list[int]]:
    """Return the attention op's cuDNN arguments (lists, shapes) for conversations of `lengths`."""
    lists, shapes = torch.ops.fastsft.divide_attention(lengths, heads.queries, heads.keys, heads.size)
    return lists.to(device), shapes


def dirty_free_memory(device: torch.device) -> None:
    """Fill most of a GPU's free memory with NaN.

    The filled blocks stay in torch's cache, so kernels then get them as scratch memory.
    """
    if device.type != "cuda":
        return
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0]
    # torch has a separate pool for blocks up to 1 MiB.
    small = [torch.full((1 << 17,), torch.nan, device=device) for _ in range(64)]
    large = torch.full((max(1, free // 5),), torch.nan, device=device)  # 4/5 of the free memory
    del small, large


def _now(device: torch.device) -> float:
    """Wait for all work on the device, and return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
