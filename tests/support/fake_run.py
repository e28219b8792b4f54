"""A fake engine and a fake checkpoint module, with which the training loop can be tested without a model."""

import contextlib
import json
import math
import types
from pathlib import Path

import numpy as np

from fastsft.arguments import TrainingArguments
from fastsft.model.model_config import ModelConfig
from fastsft.planning.memory_plan import EngineSettings
from fastsft.trainer import Trainer


class Rows:
    """A fake data set. lengths, targets: number of tokens and of targets of each row."""

    max_id = 9

    def __init__(self, lengths, targets):
        self.native = self
        self._lengths, self._targets = np.asarray(lengths), np.asarray(targets)

    def __len__(self):
        return len(self._lengths)

    def untouched_rows(self, *, label=True):
        """Return the rows, as fastsft's own data sets do while their items are unchanged."""
        return self

    def lengths(self):
        return self._lengths

    def extents(self):
        return self._lengths

    def target_counts(self):
        return self._targets

    def label_counts(self):
        return self._targets

    def num_packed(self):
        return 0


class Engine:
    """A fake engine that records its steps.

    The loss of a token of row r is 1 + r / 100, halved by every step. behind: number of newest results that
    `take_results` keeps back, as on a GPU.
    """

    num_parameters = 1000
    num_non_embedding_parameters = 10
    vocab_size = 1000

    def __init__(self, bad_step=None, behind=0):
        self.steps, self.count, self.bad_step = [], 0, bad_step
        self.behind, self.results = behind, []

    def _sum(self, dataset, rows, weights):
        return float(
            sum(w * dataset.target_counts()[r] * (1 + r / 100) for r, w in zip(rows, weights, strict=True))
        )

    def reserve(self, *, micro_batch, step):
        self.reserved = (micro_batch, step)

    def begin_step(self, dataset, micro_batches, weights, **options):
        loss = (
            sum(self._sum(dataset, r, w) for r, w in zip(micro_batches, weights, strict=True)) / 2**self.count
        )
        if self.count + 1 == self.bad_step:
            self.bad_step = None
            self.results.append(types.SimpleNamespace(loss=math.nan, grad_norm=math.nan, finite=False))
            return
        self.count += 1
        rows = [int(row) for batch in micro_batches for row in batch]
        self.steps.append({"rows": rows, "loss": loss, **options})
        self.results.append(types.SimpleNamespace(loss=loss, grad_norm=2 * loss, finite=True))

    def take_results(self, all):
        due = len(self.results) if all else max(len(self.results) - self.behind, 0)
        taken, self.results = self.results[:due], self.results[due:]
        return taken

    def loss(self, dataset, rows, weights, label_smoothing, find_packed):
        return self._sum(dataset, rows, weights)


class Model:
    """A fake model with the given engine."""

    source_directory = Path("model")
    attention_kernel = "flash2"

    def adapter_facts(self) -> None:
        """All of it is trained."""

    def base_weights(self) -> None:
        """The same."""

    def __init__(self, engine):
        self.engine = engine
        self.config = ModelConfig(use_cache=False)

    def check_as_given(self, caller, training):
        pass

    def check_rows(self, native, numbers=None, *, training=True):
        pass

    def load_changed_weights(self):
        pass

    def load_weights_before_save(self, caller):
        return False

    def changed_weights(self):
        return []

    def set_mode(self, *, training):
        pass

    def begin_training(self, *, is_stale):
        pass

    def end_training(self):
        pass

    def mark_stale(self):
        pass

    def refresh(self):
        pass

    def check_unaltered(self, caller):
        pass

    def check_no_gradients(self, caller):
        pass

    def forbid_gradients(self, event):
        return contextlib.nullcontext()

    def library_has_changed(self):
        return False

    def load_written_weights(self):
        return False

    def check_no_writes(self, event):
        pass

    def build(self, args, groups, recompute="selective", chosen=None):
        return self.engine

    def follow_plan(self, chosen):
        pass

    def copy_to_module(self):
        pass

    def memory_setting(self, args):
        config = {
            "model_type": "llama", "vocab_size": 1000, "hidden_size": 8, "intermediate_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 1, "rms_norm_eps": 1e-5,
        }  # fmt: skip
        return EngineSettings(json.dumps(config))

    def conversation_cost(self):
        return (1.0, 0.0)

    def num_parameters(self):
        return self.engine.num_parameters


ROWS = Rows(np.arange(10, 21), np.arange(1, 12))


def fake_trainer(output, *, engine=None, rows=ROWS, eval_rows=None, callbacks=(), **options):
    """Make a Trainer with a fake model.

    By default it has eleven rows in micro-batches of two rows, three steps of two micro-batches per epoch,
    and two epochs.
    """
    flags = {
        "output_dir": str(output), "use_cpu": True, "per_device_train_batch_size": 2, "logging_steps": 1,
        "gradient_accumulation_steps": 2, "num_train_epochs": 2, "save_strategy": "no", "learning_rate": 1e-3,
        "model_max_length": 32, "disable_tqdm": True, "plot_loss": False, **options,
    }  # fmt: skip
    return Trainer(
        Model(engine or Engine()),
        args=TrainingArguments(**flags),
        train_dataset=rows,
        eval_dataset=eval_rows,
        callbacks=callbacks,
    )


def saving_module():
    """Return a fake module with the functions of fastsft.saving that the training loop calls."""

    def save_checkpoint(trainer, directory):
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        state = dict(trainer.loop_state())
        (path / "fastsft_state.json").write_text(json.dumps(state))
        trainer.state.save_to_json(path / "trainer_state.json")
        (path / "engine.json").write_text(json.dumps(trainer.engine.count))

    def load_checkpoint(trainer, directory):
        trainer.engine.count = json.loads((Path(directory) / "engine.json").read_text())
        return json.loads((Path(directory) / "fastsft_state.json").read_text())

    def newest_checkpoint(directory):
        found = sorted(Path(directory).glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
        return str(found[-1]) if found else None

    class CheckpointSaver:
        def wait_before(self, directory: object) -> None:
            """Wait for nothing: no save of this one is in flight."""

        def __init__(self, trainer):
            self.trainer, self.saved = trainer, None

        def save(self, directory):
            module.save_checkpoint(self.trainer, directory)
            self.saved = directory

        def has(self, directory):
            return self.saved == directory

        def remember(self, directory):
            self.saved = directory

        def poll(self):
            pass

        wait = check_room = poll

        def abandon(self, error):
            pass

    module = types.SimpleNamespace(
        CheckpointSaver=CheckpointSaver,
        save_checkpoint=save_checkpoint,
        load_checkpoint=load_checkpoint,
        newest_checkpoint=newest_checkpoint,
    )
    return module
