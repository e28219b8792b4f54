"""`native` from every trainer rank at once: each sends its own rows, in a group in which it is rank 0.

No rank gathers what the others hold, and none of them carries all bytes.
"""

from __future__ import annotations

from fastsft.weight_sync.modes import register
from fastsft.weight_sync.modes.native import Native


@register
class NativeMultiroot(Native):
    """Buckets, checksums and votes as in `native`, in each group; the last group to agree ends a sync."""

    name = "native_multiroot"
    every_rank = True
