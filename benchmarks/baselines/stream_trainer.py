"""A peer's trainer on a stream of tokenised conversations, watched: the baselines of bench_peers.py.

usage: python benchmarks/baselines/stream_trainer.py --peer fastchat --stream S --config C --report R ...

Every peer takes the conversations in order, `--rows` an optimizer step, with float32 weights, moments and
gradients, in bfloat16 by autocast unless `--bf16 False`:

* fastchat: the Trainer of transformers under FastChat's published recipe: rows padded to `--longest`,
  gradient checkpointing, AdamW of torch.
* transformers: the same Trainer at its best here: padded to the longest row of a micro-batch, fused AdamW,
  checkpointing only with `--checkpointing`.
* liger: that, with Liger's kernels (a GPU is needed).
* trl: TRL's SFTTrainer with completion-only labels, on a GPU with Liger's kernels; `--padding_free` where
  flash-attn is installed.

Needs no fastsft. Weights: normal, deviation 0.02, norms one, drawn in the order of the names.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import peak_resident_bytes

IGNORED = -100
PEERS = ("fastchat", "transformers", "liger", "trl")
Row = tuple[list[int], int]


def read_stream(path: Path) -> list[Row]:
    """(ids, how many of the last ones are learned) of every conversation."""
    stream = np.load(path)
    ends = np.cumsum(stream["lengths"])
    pieces = np.split(stream["ids"], ends[:-1])
    return [(ids.tolist(), int(n)) for ids, n in zip(pieces, stream["learned"], strict=True)]


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Conversations as a model's inputs; with `longest` padded to it, as FastChat does."""

    def __init__(self, rows: list[Row], longest: int | None) -> None:
        self.rows, self.longest = rows, longest

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return pad([self.rows[index]], self.longest, lambda tensor: tensor[0])


def pad(rows: list[Row], longest: int | None = None, of: Any = lambda tensor: tensor) -> dict[str, Any]:
    """Right padding to `longest`, or to the longest row."""
    width = longest or max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels, mask = torch.full_like(ids, IGNORED), torch.zeros_like(ids)
    for i, (row, learned) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        labels[i, len(row) - learned : len(row)] = ids[i, len(row) - learned : len(row)]
        mask[i, : len(row)] = 1
    return {"input_ids": of(ids), "labels": of(labels), "attention_mask": of(mask)}


def make_model(config: Path, device: str, checkpointing: bool) -> Any:
    """A causal language model with random float32 weights on the device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = json.loads(config.read_text())
    shape = AutoConfig.for_model(**fields)
    shape.use_cache = False
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(shape, torch_dtype=torch.float32)
    torch.manual_seed(0)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, device=device) * 0.02)
            else:
                parameter.fill_(1.0)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def watched(trainer_class: Any, device: str) -> Any:
    """`trainer_class`, its rows in order, with losses before rounding and the time behind every step."""
    from transformers import TrainerCallback

    class Watch(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.times: list[float] = []

        def _note(self) -> None:
            if device != "cpu":
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            self._note()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self._note()

    class Watched(trainer_class):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.watch, self.losses = Watch(), []
            self.add_callback(self.watch)

        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def _maybe_log_save_evaluate(self, tr_loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
                self.losses.append(tr_loss.item() / (self.state.global_step - self._globalstep_last_logged))
            super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)

    return Watched


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """What all peers are told alike."""
    plain = options.peer == "fastchat" or options.device == "cpu"
    return {
        "output_dir": str(options.report.with_suffix(".out")),
        "per_device_train_batch_size": options.micro_batch,
        "gradient_accumulation_steps": options.rows // options.micro_batch,
        "max_steps": options.steps, "learning_rate": 1e-6, "lr_scheduler_type": "constant",
        "weight_decay": 0.0, "max_grad_norm": 1.0, "logging_steps": 1, "save_strategy": "no",
        "report_to": "none", "disable_tqdm": True, "bf16": options.bf16, "use_cpu": options.device == "cpu",
        "remove_unused_columns": False, "gradient_checkpointing": options.checkpointing,
        "optim": "adamw_torch" if plain else "adamw_torch_fused",
        "dataloader_pin_memory": options.device != "cpu",
    }  # fmt: skip


def plain_trainer(options: argparse.Namespace, rows: list[Row], model: Any) -> Any:
    from transformers import Trainer, TrainingArguments, default_data_collator

    args = TrainingArguments(**settings(options), use_liger_kernel=options.peer == "liger")
    fixed = options.peer == "fastchat"
    data = Rows(rows, options.longest) if fixed else rows
    collate = default_data_collator if fixed else pad
    return watched(Trainer, options.device)(model=model, args=args, train_dataset=data, data_collator=collate)


def trl_trainer(options: argparse.Namespace, rows: list[Row], model: Any) -> Any:
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = {f"<{i}>": i for i in range(3)}  # asked for its padding only: the rows are tokens already
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<0>")),
        unk_token="<0>", pad_token="<0>", eos_token="<2>",
    )  # fmt: skip
    mask = [[0] * (len(ids) - n) + [1] * n for ids, n in rows]
    data = Dataset.from_dict({"input_ids": [ids for ids, _ in rows], "completion_mask": mask})
    args = SFTConfig(
        **settings(options), max_length=options.longest, completion_only_loss=True,
        padding_free=options.padding_free, use_liger_kernel=options.device != "cpu",
    )  # fmt: skip
    return watched(SFTTrainer, options.device)(
        model=model, args=args, train_dataset=data, processing_class=tokenizer
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", choices=PEERS, required=True)
    for name in ("stream", "config", "report"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("rows", "micro_batch", "steps", "longest"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="0: as torch has it")
    parser.add_argument("--bf16", type=lambda text: text == "True", default=True)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--padding_free", action="store_true")
    options = parser.parse_args()
    options.checkpointing |= options.peer == "fastchat"
    return options


def main() -> None:
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = make_model(options.config, options.device, options.checkpointing)
    rows = read_stream(options.stream)
    make = trl_trainer if options.peer == "trl" else plain_trainer
    trainer = make(options, rows, model)
    trainer.train()
    used = 0
    if options.device != "cpu":
        free, total = torch.cuda.mem_get_info(options.device)
        used = total - free
    packages = ("torch", "transformers", "accelerate", "trl", "liger-kernel")
    found = {p: version for p in packages if (version := _version(p))}
    report = {
        "losses": trainer.losses, "seconds": np.diff(trainer.watch.times).tolist(),
        "peak_memory": used or peak_resident_bytes(), "versions": found,
        "dtypes": {
            "compute": "bfloat16" if options.bf16 else "float32", "master": "float32", "moments": "float32",
            "gradients": "float32",
        },
        "settings": {key: str(value) for key, value in vars(options).items()},
    }  # fmt: skip
    options.report.write_text(json.dumps(report))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
