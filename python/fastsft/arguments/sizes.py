"""Words of flags that mean a number of bytes, or a range of steps."""

from __future__ import annotations

import re

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


def parse_size(size: str | int) -> int:
    """Bytes of "5GB" (decimal), "5GiB" (binary) or a number. ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(size))
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(f'--max_shard_size: expected a size like "5GB" or "500MB", got "{size}"')
    value = int(float(match[1]) * unit)
    if value <= 0:
        raise ValueError(f"--max_shard_size: expected more than 0 bytes, got {size}")
    return value


def parse_steps(text: str) -> tuple[int, int]:
    """First and last step of `3-5` or `4`, counted from 1. ValueError for anything else."""
    first, dash, last = text.partition("-")
    last = last if dash else first
    if first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last):
        return int(first), int(last)
    raise ValueError(f"--profile_steps: expected steps as 3-5 or 4, counted from 1, got {text!r}")
