"""fastsft's Trainer, watched by a callback: our side of bench_train.py and bench_lora.py.

usage: python benchmarks/fastsft_trainer.py --report R --started <unix time> --threads 2 -- <flags>

The steps of fastsft.train.train() without the final save, through the public API; writes the same JSON as
baselines/fastchat_trainer.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastsft.arguments import DataArguments, ModelArguments, TrainingArguments
from fastsft.arguments.lora import LoraArguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.callbacks import TrainerCallback
from fastsft.data import make_supervised_data_module
from fastsft.lora.attach import open_model
from fastsft.tokenizer import Tokenizer
from fastsft.trainer import Trainer
from harness import peak_resident_bytes


class Watch(TrainerCallback):
    """Time and real tokens at the end of each optimizer step, and the peak memory of the run."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.processor: list[float] = []  # seconds of all threads
        self.tokens: list[int] = []
        self.peak = 0

    def on_step_end(self, *args: Any, step_tokens: int, **kwargs: Any) -> None:
        self.times.append(time.time())
        self.processor.append(time.process_time())
        self.tokens.append(step_tokens)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.peak = peak_resident_bytes()


def train(flags: Sequence[str], watch: Watch) -> Trainer:
    parser = DataclassParser((ModelArguments, DataArguments, TrainingArguments, LoraArguments))
    model_args, data_args, args, lora_args = parser.parse_args_into_dataclasses(list(flags))
    model = open_model(model_args.model_name_or_path, lora_args, args.cache_dir, args.seed)
    model.config.use_cache = False
    tokenizer = Tokenizer.from_pretrained(str(model.source_directory), model_max_length=args.model_max_length)
    tokenizer.pad_token = tokenizer.unk_token
    data = make_supervised_data_module(tokenizer=tokenizer, data_args=data_args)
    trainer = Trainer(model=model, tokenizer=tokenizer, args=args, callbacks=[watch], **data)
    trainer.train()
    return trainer


def main(arguments: Sequence[str]) -> None:
    split = list(arguments).index("--")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--started", type=float, required=True)
    parser.add_argument(
        "--threads", type=int, required=True, help="as OMP_NUM_THREADS, which bench_train.py sets"
    )
    args = parser.parse_args(arguments[:split])
    watch = Watch()
    trainer = train(arguments[split + 1 :], watch)
    report = {
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "tokens": watch.tokens,
        "times": watch.times,
        "processor": watch.processor,
        "first_step_seconds": watch.times[0] - args.started,
        "peak_resident_bytes": watch.peak,
    }
    args.report.write_text(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1:])
