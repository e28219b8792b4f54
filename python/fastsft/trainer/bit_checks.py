"""Wrong bits that nothing else reports: steps computed twice, and state that ranks should share.

Source: docs/spec/reliability.md, section 4 (Megatron's rerun machine has the exit statuses 16 and 17).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastsft.ranks.process_group import gather_objects
from fastsft.runtime.errors import ReplayMismatchError, ReplicaMismatchError

if TYPE_CHECKING:
    from fastsft import _C


def check_replay(engine: _C.Engine, step: int) -> None:
    """Check that the replayed step had bit-identical gradients on every rank. Collective.

    ReplayMismatchError names the ranks whose own gradients differed. The step has changed no weight then.
    """
    found = engine.replay_digests
    mine = (found.own[0] == found.own[1], found.reduced[0] == found.reduced[1])
    reports = gather_objects(mine)
    wrong = [rank for rank, (own, _) in enumerate(reports) if not own]
    if not wrong and all(reduced for _, reduced in reports):
        return
    where = (
        f"{_ranks(wrong)} computed different gradients"
        if wrong
        else "gradients were equal, what came back from the sum over ranks was not"
    )
    raise ReplayMismatchError(
        f"step {step} was computed twice and the bits differ: {where}; the step changed no weight. Faulty "
        "memory, processor or network, or kernels that depend on timing (GPU: --full_determinism True); the "
        "same command resumes from the newest checkpoint, best on other machines"
    )


def check_replicas(engine: _C.Engine, step: int) -> None:
    """Ranks that hold the same part of the state hold the same bits; collective.

    ReplicaMismatchError names the ranks that differ from most others, and the units.
    """
    mine = [(item.unit, item.shard, item.state, item.parameters) for item in engine.state_digests()]
    state: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    parameters: dict[str, dict[int, int]] = defaultdict(dict)
    for rank, digests in enumerate(gather_objects(mine)):
        for unit, shard, held, computed in digests:
            state[unit, shard][rank] = held
            parameters[unit][rank] = computed
    faults = [
        (what, deviating(copies))
        for what, copies in [
            *((f"the state of {unit}", copies) for (unit, _), copies in state.items()),
            *((f"the parameters of {unit}", copies) for unit, copies in parameters.items()),
        ]
    ]
    wrong = [(what, ranks) for what, ranks in faults if ranks]
    if not wrong:
        return
    guilty = sorted({rank for _, ranks in wrong for rank in ranks})
    units = ", ".join(what for what, _ in wrong[:3]) + (", ..." if len(wrong) > 3 else "")
    raise ReplicaMismatchError(
        f"after step {step} copies of the state differ: {_ranks(guilty)} against the others, in {units}; the "
        "same command resumes from the newest checkpoint, best without that machine"
    )


def deviating(copies: dict[int, int]) -> list[int]:
    """Ranks whose copy is not that of the majority; without a majority all of them."""
    value, count = Counter(copies.values()).most_common(1)[0]
    if count == len(copies):
        return []
    return sorted(rank for rank, copy in copies.items() if copy != value or 2 * count <= len(copies))


def _ranks(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in ranks]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names)}"
