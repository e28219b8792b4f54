"""Handles steps with NaN, inf, a loss spike or mismatched bits.

See docs/signals.md, "Bad numbers (NaN, inf)".
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fastsft.ranks.process_group import gather_objects
from fastsft.runtime.errors import NotFiniteError, ReplayMismatchError, ReplicaMismatchError
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.arguments import TrainingArguments

_WINDOW = 32  # recent losses in the mean against which a loss is compared
_LEAST = 8  # losses that must be known before a loss can count as a spike


class RollBackError(Exception):
    """Request to the training loop: go back to the last checkpoint before `steps[0]`, and skip `steps`."""

    def __init__(self, steps: list[int], reason: str) -> None:
        super().__init__(reason)
        self.steps, self.reason = steps, reason


class BadSteps:
    """Judge of steps by their loss and gradient norm, which are the same on every rank.

    The engine changes no weight in a step whose loss or norm is not finite, or whose loss is above
    `loss_limit()`. `left_out`: numbers of the steps that are not computed after a roll-back.
    """

    def __init__(self, args: TrainingArguments) -> None:
        self._args = args
        self.left_out: set[int] = set()
        self._count = 0
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self._spikes: list[int] = []

    def loss_limit(self) -> float:
        """Return the loss above which a step is a spike; infinite without --loss_spike_factor."""
        if not self._args.loss_spike_factor or len(self._recent) < _LEAST:
            return math.inf
        return float(self._args.loss_spike_factor * math.fsum(self._recent) / len(self._recent))

    def judge(self, step: int, result: _C.StepResult, limit: float) -> bool:
        """Return True if `step` is good. Otherwise print a message and return False, or raise an error.

        limit: the loss limit with which the step was begun. NotFiniteError or RollBackError according to
        --on_nonfinite.
        """
        if result.finite and math.isfinite(result.loss):
            self._recent.append(result.loss)
            self._spikes.clear()
            return True
        if math.isfinite(result.loss) and result.loss > limit:
            self._spikes.append(step)
            factor = self._args.loss_spike_factor
            reason = f"loss {result.loss:.6g} is above {limit:.6g}, {factor:g} times the mean"
            self._answer(step, reason, answered=len(self._spikes) >= self._args.loss_spike_patience)
        else:
            reason = f"loss {result.loss}, gradient norm {result.grad_norm}: not finite"
            self._answer(step, reason, answered=True)
        return False

    def _answer(self, step: int, reason: str, *, answered: bool) -> None:
        policy = self._args.on_nonfinite if answered else "skip"
        narrow = "use --bf16 True, as float16 holds no number above 65,504, " if self._args.fp16 else ""
        advice = f"{narrow}lower --learning_rate or --max_grad_norm, or let --on_nonfinite skip such steps"
        if step == 1 and not narrow:
            advice = "the model may be damaged: fastsft verify DIR looks at all its numbers"
        if policy == "stop":
            raise NotFiniteError(step, f"{reason}; it changed no weight; {advice}{_RESUMES}")
        if self._count >= self._args.max_nonfinite_skips:
            raise NotFiniteError(
                step, f"{reason}; {self._count} groups are left out already (--max_nonfinite_skips){_RESUMES}"
            )
        if policy == "rollback":
            raise RollBackError(self._spikes or [step], reason)
        self._count += 1
        tell(f"step {step}: {reason}; left out, it changed no weight ({self._count} so far)")

    def rolled_back(self, steps: list[int]) -> None:
        """Skip `steps` from now on. Called after the run has gone back to a step before them."""
        self.left_out.update(steps)
        self._count += len(steps)
        self._spikes.clear()

    def state(self) -> dict[str, object]:
        """Return the state to store in fastsft_state.json, for `restore`."""
        return {
            "left_out": sorted(self.left_out),
            "count": self._count,
            "recent_losses": list(self._recent),
            "spikes": list(self._spikes),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the values that `state()` returned. Steps that are skipped now are still skipped then."""
        self.left_out |= set(state.get("left_out", []))
        self._count = max(self._count, state.get("count", 0))
        self._recent = deque(state.get("recent_losses", []), maxlen=_WINDOW)
        self._spikes = list(state.get("spikes", []))


_RESUMES = "; the same command resumes from the newest checkpoint, if one was written"


def check_replay(engine: _C.Engine, step: int) -> None:
    """Check that the replayed step had bit-identical gradients on every rank. Collective.

    ReplayMismatchError names the ranks whose gradients differed before the reduction over ranks. The engine
    changes no weight in such a step.
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
    """Check that ranks with the same shard have bit-identical state and parameters. Collective.

    ReplicaMismatchError names the units, and the ranks that differ from the majority.
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
    """Return the ranks whose value in `copies` differs from the majority's.

    If no value has a majority, return all ranks.
    """
    value, count = Counter(copies.values()).most_common(1)[0]
    if count == len(copies):
        return []
    return sorted(rank for rank, copy in copies.items() if copy != value or 2 * count <= len(copies))


def _ranks(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in ranks]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names)}"


_GROWTH, _BACKOFF = 2.0, 0.5
_MOST_SCALE = 2.0**127  # the largest power of two that float32 holds
# fairseq's --min-loss-scale. Gradients that overflow below this scale would overflow at any scale.
_LEAST_SCALE = 1e-4


class LossScale:
    """The dynamic loss scale of float16 training, the same on every rank; 1 without --fp16.

    A step whose gradients overflow changes no weight. `schedule_lag`: number of overflowed steps, which do
    not advance the learning-rate schedule. With --optim adamw_torch_fused the number stays 0: torch's fused
    AdamW skips the update inside its kernel, so accelerate does not notice and advances the schedule.
    """

    def __init__(self, args: TrainingArguments) -> None:
        self.enabled = bool(args.fp16)
        self.value = float(args.initial_loss_scale) if self.enabled else 1.0
        self.schedule_lag = 0
        self._holds_schedule = args.optim != "adamw_torch_fused"
        self._window = int(args.loss_scale_window)
        self._good_steps = 0  # finite steps since the scale last changed

    def absorbs(self, step: int, result: _C.StepResult, limit: float) -> bool:
        """Adjust the scale after `step`; return True if gradients overflowed, which lowers the scale.

        NotFiniteError if the scale falls below the smallest useful scale.
        """
        if not self.enabled:
            return False
        if math.isfinite(result.loss) and result.loss > limit:  # a loss spike, which BadSteps handles
            return False
        if result.finite:
            self._grow()
            return False
        before, self.value = self.value, self.value * _BACKOFF
        self._good_steps = 0
        self.schedule_lag += self._holds_schedule
        if not math.isfinite(result.loss):  # no scale would help; BadSteps handles the step
            return False
        if self.value < _LEAST_SCALE:
            raise NotFiniteError(
                step,
                f"gradients overflow float16 at a loss scale of {before:g}; use --bf16 True, or lower "
                "--learning_rate",
            )
        tell(
            f"step {step}: gradients overflowed float16, no weight changed; loss scale {before:g} to "
            f"{self.value:g}"
        )
        return True

    def _grow(self) -> None:
        self._good_steps += 1
        if self._good_steps < self._window:
            return
        self._good_steps = 0
        if self.value * _GROWTH <= _MOST_SCALE:
            self.value *= _GROWTH

    def state(self) -> dict[str, object]:
        """Return the state to store in fastsft_state.json, for `restore`; empty without --fp16."""
        if not self.enabled:
            return {}
        return {
            "scale": self.value,
            "good_steps": self._good_steps,
            "schedule_lag": self.schedule_lag,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the values that `state()` returned.

        An empty `state`, from a checkpoint of another dtype, leaves the scale as it is.
        """
        if not self.enabled or not state:
            return
        self.value, self.schedule_lag = float(state["scale"]), int(state["schedule_lag"])
        self._good_steps = int(state["good_steps"])
