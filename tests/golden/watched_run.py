"""A run of FastChat's own training that records every step: python watched_run.py OUT ADAPTER FLAG ...

The Trainer is that of transformers; a subclass only looks on and takes losses before they are rounded. With
an ADAPTER (a directory of peft's; "" for none) the run trains it, with FastChat's data and collator. Runs
under torchrun, too; rank 0 writes the JSON file OUT.
"""

from __future__ import annotations

import hashlib
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from fastchat.train import train as fastchat
from recording import write_json

KEPT = ("step", "epoch", "grad_norm", "learning_rate")


class Watched(torch.utils.data.Dataset):
    """A data set that notes the order in which rows are asked for."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.asked = rows, []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return self.rows[index]


class WatchingTrainer(transformers.Trainer):
    """A Trainer that notes rows, targets and losses of micro-batches, and unrounded losses of steps."""

    made: list[Any] = []  # noqa: RUF012

    def __init__(self, train_dataset: Any, **kwargs: Any) -> None:
        super().__init__(train_dataset=Watched(train_dataset), **kwargs)
        self.micro_batches, self.eval_batches, self.losses = [], [], {}
        self.made.append(self)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        watched = self.train_dataset
        rows = [watched.asked.pop(0) for _ in range(len(inputs["input_ids"]))]
        for row, ids in zip(rows, inputs["input_ids"], strict=True):
            assert torch.equal(watched.rows[row]["input_ids"], ids.cpu())
        tokens = int(inputs["labels"].ne(-100).sum())
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.micro_batches.append({
            "step": self.state.global_step + 1,
            "rows": rows,
            "label_tokens": tokens,
            "num_items_in_batch": None if num_items_in_batch is None else int(num_items_in_batch),
            "loss": number(loss.item()),
        })  # fmt: skip
        return loss

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        rows, tokens = len(inputs["input_ids"]), int(inputs["labels"].ne(-100).sum())
        result = super().prediction_step(model, inputs, *args, **kwargs)
        loss = number(result[0].item())
        step = self.state.global_step
        self.eval_batches.append({"step": step, "rows": rows, "label_tokens": tokens, "loss": loss})
        return result

    def _maybe_log_save_evaluate(self, tr_loss: Any, *args: Any, **kwargs: Any) -> None:
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            steps = self.state.global_step - self._globalstep_last_logged
            self.losses[self.state.global_step] = self._nested_gather(tr_loss).mean().item() / steps
        super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)


def number(value: Any) -> Any:
    """Return a value for JSON, which has no NaN and no infinity."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def weights(model: Any) -> dict[str, Any]:
    """Return norm and first values of every tensor, and the hash of all."""
    state = {name: tensor.detach().float().contiguous() for name, tensor in model.state_dict().items()}
    total = hashlib.sha256()
    for _, tensor in sorted(state.items()):
        total.update(tensor.numpy().astype("<f4").tobytes())
    return {"sha256": total.hexdigest(), "tensors": {key: short(state[key]) for key in sorted(state)}}


def short(tensor: torch.Tensor) -> dict[str, Any]:
    first = tensor.detach().flatten()[:4].tolist()
    return {"shape": list(tensor.shape), "l2": tensor.detach().double().norm().item(), "first": first}


def report(trainer: WatchingTrainer) -> dict[str, Any]:
    """Return the steps of this process's life, evaluations, and the end of the run."""
    steps, evals, end = [], [], {}
    for entry in trainer.state.log_history:
        if "eval_loss" in entry:
            evals.append({key: entry[key] for key in ("step", "epoch", "eval_loss")})
        elif "train_loss" in entry:
            end = {key: entry[key] for key in ("step", "epoch", "train_loss", "total_flos")}
        elif entry["step"] in trainer.losses:  # the others came with the checkpoint
            row = {key: entry[key] for key in KEPT if key in entry}
            row |= {"loss": trainer.losses[entry["step"]], "loss_logged": entry["loss"]}
            steps.append({key: number(value) for key, value in row.items()})
    model = trainer.accelerator.unwrap_model(trainer.model)
    sizes = {"world_size": trainer.args.world_size, "max_steps": trainer.state.max_steps}
    found = {**sizes, "steps": steps, "evals": evals, "end": end}
    if not hasattr(model, "merge_and_unload"):
        return {**found, "final_weights": weights(model)}
    adapter = {key: short(value) for key, value in model.named_parameters() if value.requires_grad}
    return {**found, "final_weights": weights(model.merge_and_unload()), "final_adapter": adapter}


def train_whole_model() -> None:
    fastchat.Trainer = WatchingTrainer
    # FastChat's own function saves, then raises KeyError: None if the model is not wrapped in FSDP.
    fastchat.trainer_save_model_safe = lambda trainer: trainer.save_model()
    fastchat.train()


def train_adapter(adapter: str) -> None:
    """Do as FastChat's train_lora.py does, without DeepSpeed, from a given adapter."""
    from peft import PeftModel

    classes = (fastchat.ModelArguments, fastchat.DataArguments, fastchat.TrainingArguments)
    model_args, data_args, args = transformers.HfArgumentParser(classes).parse_args_into_dataclasses()
    fastchat.local_rank = args.local_rank
    name = model_args.model_name_or_path
    model = transformers.AutoModelForCausalLM.from_pretrained(name)
    model.config.use_cache = False
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        name, model_max_length=args.model_max_length, padding_side="right", use_fast=False
    )
    tokenizer.pad_token = tokenizer.unk_token
    wrapped = PeftModel.from_pretrained(model, adapter, is_trainable=True)
    data = fastchat.make_supervised_data_module(tokenizer=tokenizer, data_args=data_args)
    WatchingTrainer(model=wrapped, tokenizer=tokenizer, args=args, **data).train()


def main(out: str, adapter: str, flags: list[str]) -> None:
    sys.argv = ["train.py", *flags]
    torch.use_deterministic_algorithms(True)
    if adapter:
        train_adapter(adapter)
    else:
        train_whole_model()
    (trainer,) = WatchingTrainer.made
    ranks = [(trainer.micro_batches, trainer.eval_batches)]
    if dist.is_initialized():
        ranks = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, (trainer.micro_batches, trainer.eval_batches))
    if trainer.is_world_process_zero():
        lists = {"micro_batches": [rank[0] for rank in ranks], "eval_batches": [rank[1] for rank in ranks]}
        write_json(Path(out), {**report(trainer), **lists})
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
