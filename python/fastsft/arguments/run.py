"""Output directory, length and seeds of a run."""

from __future__ import annotations

from dataclasses import dataclass

from fastsft.arguments.support import inert, used

_KEPT = "the attribute is kept for scripts"


@dataclass
class RunArguments:
    """Output directory, length, seeds, resuming."""

    output_dir: str | None = used(None, "checkpoints and the final model; unset: trainer_output")
    overwrite_output_dir: bool = used(
        False, "replace the finished model of another run in output_dir; its checkpoints: --no_resume"
    )
    do_train: bool = inert(False, "a flag of example scripts", _KEPT, quiet=True)
    do_eval: bool = inert(False, "a flag of scripts; True when there is evaluation", _KEPT, quiet=True)
    do_predict: bool = inert(False, "a flag of example scripts", _KEPT)
    num_train_epochs: float = used(3.0, "epochs, may be fractional")
    max_steps: int = used(-1, "above 0: optimizer steps, instead of epochs")
    seed: int = used(42, "random seed of the data's order and all generators")
    data_seed: int | None = used(None, "random seed of the data's order alone")
    ignore_data_skip: bool = used(False, "resume from the start of the epoch's data")
    resume_from_checkpoint: str | None = used(
        None, "a checkpoint, transformers' too; True is the newest, which is the default, False none"
    )
    no_resume: bool = used(False, "ignore checkpoints in output_dir")
    cache_dir: str | None = used(None, "where models from the hub are kept")
