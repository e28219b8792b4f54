"""Flags of linear layers in 8-bit floats, and the state options that they set.

The fields are PrecisionArguments' (device_fields.py).
"""

from __future__ import annotations

from typing import Any, Protocol

# Fields that say which linear layers compute in 8 bits, and how; StateOptions has the same names.
FP8_FLAGS = (
    "fp8",
    "fp8_format",
    "fp8_wgrad",
    "num_layers_at_start_in_bf16",
    "num_layers_at_end_in_bf16",
)
_ALL_FP8_FLAGS = (*FP8_FLAGS, "keep_fp8_weights")  # the last changes only speed and memory
FP8_SWITCHES = ("fp8_wgrad", "keep_fp8_weights")  # flags that are True or False
# torchao's format of output gradients for each recipe
_FP8_FORMATS = {"rowwise": "e4m3", "tensorwise": "hybrid"}


class Fp8Flags(Protocol):
    """Arguments that decide which linear layers compute in 8 bits."""

    @property
    def bf16(self) -> bool: ...
    @property
    def fp16(self) -> bool: ...
    @property
    def fp8(self) -> str | None: ...
    @property
    def fp8_format(self) -> str | None: ...
    @property
    def fp8_wgrad(self) -> bool: ...
    @property
    def num_layers_at_start_in_bf16(self) -> int: ...
    @property
    def num_layers_at_end_in_bf16(self) -> int: ...
    @property
    def keep_fp8_weights(self) -> bool | None: ...


def fp8_flags(args: Fp8Flags) -> dict[str, Any]:
    """Return the values of --fp8 and its flags as StateOptions has them. ValueError as in `check_fp8`."""
    check_fp8(args)
    if args.fp8 is None:
        return {}
    flags = {name: getattr(args, name) for name in _ALL_FP8_FLAGS}
    return {
        **flags,
        "fp8_format": args.fp8_format or _FP8_FORMATS[args.fp8],
        "keep_fp8_weights": bool(args.keep_fp8_weights),  # the memory plan chooses the final value
    }


def check_fp8(args: Fp8Flags) -> None:
    """Raise ValueError for --fp8 without bfloat16, and for its other flags without --fp8."""
    if args.fp8 is not None and not args.bf16:
        given = "--fp16 True" if args.fp16 else "float32"
        raise ValueError(
            f"--fp8 {args.fp8}: expected --bf16 True, whose activations it quantises, got {given}; "
            "add --bf16 True, or leave --fp8 out"
        )
    for name in _ALL_FP8_FLAGS[1:]:
        if args.fp8 is None and getattr(args, name):
            raise ValueError(
                f"--{name} {getattr(args, name)} is for --fp8, which is not given; add --fp8 rowwise or "
                f"--fp8 tensorwise, or leave --{name} out"
            )
