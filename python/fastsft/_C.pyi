"""
fastsft: native core
"""

from __future__ import annotations

__all__: list[str] = ["torch_version", "with_cuda"]
torch_version: str
with_cuda: bool
