"""Progress on the console: a bar on a terminal, plain lines elsewhere; on global rank 0 only."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm.auto import tqdm  # type: ignore[import-untyped]

from fastsft.arguments import TrainingArguments
from fastsft.callbacks import TrainerCallback, TrainerControl
from fastsft.state import TrainerState


def console_line(logs: dict[str, Any]) -> str:
    """A log as transformers 4.x prints it: a dictionary, the loss with four decimals, the epoch with two."""
    places = {"loss": 4, "epoch": 2}
    shown = {
        name: round(value, places[name]) if name in places and value is not None else value
        for name, value in logs.items()
        if name != "total_flos"
    }
    return str(shown)


class Progress(TrainerCallback):
    """The bar, or without a terminal (or with --disable_tqdm) a line a log."""

    def __init__(self, args: TrainingArguments, stream: Any = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = args.process_index == 0
        self._bar_wanted = self._shown and not args.disable_tqdm and self._stream.isatty()
        self._bar: tqdm[Any] | None = None
        self._tokens = self._first_step = 0
        self._started = time.monotonic()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Open the bar at the step that the run resumes from."""
        self._started, self._tokens, self._first_step = time.monotonic(), 0, state.global_step
        if self._bar_wanted:
            self._bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                unit="step",
                file=self._stream,
                dynamic_ncols=True,
            )

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        step_tokens: int = 0,
        step_logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Move the bar: epoch, loss, gradient norm, learning rate, real tokens a second."""
        self._tokens += step_tokens
        if self._bar is not None:
            values = {name: f"{value:.4g}" for name, value in (step_logs or {}).items()}
            values["tokens/s"] = f"{self.tokens_per_second():,.0f}"
            self._bar.set_postfix(values, refresh=False)
            self._bar.update(1)

    def tokens_per_second(self) -> float:
        """Real tokens of all ranks a second since the run began; padding does not count."""
        return self._tokens / max(time.monotonic() - self._started, 1e-9)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Print the log; without a bar also where the run is and when it will end."""
        if not self._shown or logs is None:
            return
        if self._bar is not None:
            self._bar.write(console_line(logs))
        else:
            print(console_line(logs) + self._position(state, logs), flush=True)

    def _position(self, state: TrainerState, logs: dict[str, Any]) -> str:
        if "loss" not in logs:
            return ""
        passed = time.monotonic() - self._started
        done = max(state.global_step - self._first_step, 1)
        left = passed / done * (state.max_steps - state.global_step)
        return (
            f"  # step {state.global_step}/{state.max_steps}, {self.tokens_per_second():,.0f} tokens/s, "
            f"{left:.0f} s left"
        )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
