"""Parts of a tensor to rank 0, and to no other rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def gather_parts(part: torch.Tensor, parts: list[torch.Tensor], group: ProcessGroup) -> None:
    """Send this rank's contiguous `part`, or on rank 0 receive those of all ranks of `group`; collective.

    `parts`, on rank 0: where they go, contiguous, in the order of the group's ranks. Rank 0 of all ranks must
    be in the group. Empty parts do not travel.
    """
    import torch.distributed as dist

    ranks = dist.get_process_group_ranks(group)
    # Not dist.gather: gloo's needs the whole a second time.
    if dist.get_rank() != 0:
        moves = [dist.P2POp(dist.isend, part, 0, group)] if part.numel() else []
    else:
        parts[ranks.index(0)].copy_(part)
        others = [(to, peer) for to, peer in zip(parts, ranks, strict=True) if peer != 0 and to.numel()]
        moves = [dist.P2POp(dist.irecv, to, peer, group) for to, peer in others]
    for work in dist.batch_isend_irecv(moves) if moves else ():
        work.wait()
