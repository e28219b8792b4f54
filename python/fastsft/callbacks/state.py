"""The state of a run, as stored in trainer_state.json, and the result of `Trainer.train`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fastsft.runtime.output_files import write_output
from fastsft.runtime.regular_files import MOST_TOKENIZER_BYTES, read_json_object

_MOST_BYTES = 4 * MOST_TOKENIZER_BYTES  # size limit for trainer_state.json, whose log history may be long


class TrainOutput(NamedTuple):
    """Result of `Trainer.train`: step count, mean loss, and the whole run's metrics."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


@dataclass
class TrainerState:
    """Progress and logs of a run, with exactly the keys of transformers' trainer_state.json.

    The keys are listed in docs/spec/trainer_semantics.md, section 16.2.
    """

    epoch: float | None = None
    global_step: int = 0
    max_steps: int = 0
    logging_steps: float = 500
    eval_steps: float = 500
    save_steps: float = 500
    train_batch_size: int | None = None
    num_train_epochs: int = 0
    num_input_tokens_seen: int = 0
    total_flos: float = 0
    log_history: list[dict[str, Any]] = field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False
    trial_name: str | None = None
    trial_params: dict[str, Any] | None = None
    stateful_callbacks: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the content of trainer_state.json."""
        return dataclasses.asdict(self)

    def to_json_string(self) -> str:
        """Return the content of trainer_state.json as text: indent 2, sorted keys, newline at the end."""
        return json.dumps(self.to_json(), indent=2, sort_keys=True) + "\n"

    def save_to_json(self, path: str | Path) -> None:
        """Write trainer_state.json to `path`."""
        write_output(path, self.to_json_string())

    @classmethod
    def load_from_json(cls, path: str | Path) -> TrainerState:
        """Read trainer_state.json. ValueError names unknown keys."""
        values = read_json_object(path, _MOST_BYTES)
        unknown = set(values) - {item.name for item in dataclasses.fields(cls)}
        if unknown:
            known = ", ".join(item.name for item in dataclasses.fields(cls))
            raise ValueError(f"{path}: unknown keys {sorted(unknown)}; leave them out: known are {known}")
        return cls(**values)
