"""A fastsft trainer and a Ray actor that generates text, kept in step by each of the three functions in turn.

    pip install 'ray>=2.40' transformers
    python examples/weight_sync_ray.py --output_dir rollouts --steps 9 --every 3

Everything is made here: a small model of random weights, its tokenizer, and the packaged conversations. The
actor only ever has the weights that it was sent, and says after each sync how it completes a prompt. CPUs do.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import logging
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist

from fastsft.arguments import DataArguments, TrainingArguments
from fastsft.callbacks import TrainerCallback
from fastsft.cli.demo import MAX_LENGTH, make_model, packaged_conversations
from fastsft.data import make_supervised_data_module
from fastsft.model import CausalLM
from fastsft.tokenizer import Tokenizer
from fastsft.trainer import Trainer
from fastsft.weight_sync import (
    CheckpointCoordinator,
    CheckpointMonitor,
    FastsftEngine,
    Synchronizer,
    SyncPlan,
    WeightGroup,
    WeightReceiver,
    fsdp_save_state_dict,
    fsdp_sync_weight_nccl,
    fsdp_upload_state_dict,
    read_state_dict,
    sync_plan,
)

PROMPT = "USER: What is fastsft? ASSISTANT:"
STARTING_S, DEADLINE_S = 240.0, 60.0
LOGGER = logging.getLogger("rollouts")


def digest_of(named: Any) -> str:
    """Of names and values, whatever their order."""
    digest = hashlib.sha256()
    for name, tensor in sorted(dict(named).items()):
        digest.update(name.encode() + tensor.detach().float().contiguous().numpy().tobytes())
    return digest.hexdigest()


class Rollout:
    """Generates with transformers; takes weights from a directory, a synchronizer, or a broadcast."""

    def __init__(self, model_directory: str) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self._tokenizer = AutoTokenizer.from_pretrained(model_directory)
        self._model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_directory))
        self._receiver: WeightReceiver | None = None
        self._digest = ""

    def join(self, port: int, plan: str) -> None:
        """Become rank 1 of the trainer's weight group."""
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        group = WeightGroup(store, 1, 2, timeout_s=DEADLINE_S)
        self._receiver = WeightReceiver(
            group, SyncPlan.from_json(plan), self._load, mode="native", deadline_s=DEADLINE_S
        )

    def receive(self) -> str:
        """Take part in a broadcast; the digest of what came."""
        assert self._receiver is not None, "join first"
        self._arrived: list[tuple[str, torch.Tensor]] = []
        self._receiver.receive()
        return digest_of(self._arrived)

    def load_directory(self, path: str) -> str:
        """The weights of `fsdp_save_state_dict`."""
        self._arrived = []
        self._load(list(read_state_dict(path).items()))
        return digest_of(self._arrived)

    def load_from(self, synchronizer: Any) -> str:
        """The weights of `fsdp_upload_state_dict`."""
        weights, _ = ray.get(synchronizer.get_model_state_dict.remote(), timeout=DEADLINE_S)
        self._arrived = []
        self._load(list(weights.items()))
        return digest_of(self._arrived)

    def generate(self, prompt: str, tokens: int = 16) -> str:
        """A greedy completion."""
        inputs = self._tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            ids = self._model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
        return str(self._tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :]))

    def _load(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self._arrived += tensors
        unknown = self._model.load_state_dict(dict(tensors), strict=False).unexpected_keys
        assert not unknown, f"the model has no {unknown}"
        self._model.tie_weights()


class Syncs(TrainerCallback):
    """Every `every` steps: the next of the three ways. events: (step, way, same weights, completion)."""

    def __init__(self, rollout: Any, job: Path, every: int) -> None:
        self._rollout, self._every = rollout, every
        self._job = job
        self._coordinator = CheckpointCoordinator(CheckpointMonitor(default_local_dir=str(job)))
        self._synchronizer = ray.remote(Synchronizer).options(num_cpus=0, max_concurrency=8).remote()
        self._group: WeightGroup | None = None
        self._ways = itertools.cycle(
            [("save", self._save), ("upload", self._upload), ("broadcast", self._send)]
        )
        self.engine: Any = None
        self.events: list[tuple[int, str, bool, str]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._every:
            return
        name, way = next(self._ways)
        arrived = way(state.global_step)
        named, _ = self.engine.get_per_tensor_param()
        text = ray.get(self._rollout.generate.remote(PROMPT), timeout=DEADLINE_S)
        self.events.append((state.global_step, name, arrived == digest_of(named), text))
        print(f"step {state.global_step:3d}  {name:<9}  {text!r}", flush=True)

    def _save(self, step: int) -> str:
        path = self._job / f"global_step_{step}" / "actor"
        fsdp_save_state_dict(self.engine, str(path), step, self._coordinator, LOGGER, deadline_s=DEADLINE_S)
        asyncio.run(self._coordinator.register_and_monitor(step, True, state_dict_thread_count=1))
        self._coordinator.wait_all(DEADLINE_S)
        return self._answer(self._rollout.load_directory.remote(str(path)))

    def _upload(self, step: int) -> str:
        fsdp_upload_state_dict(self.engine, self._synchronizer, step, LOGGER, deadline_s=DEADLINE_S)
        return self._answer(self._rollout.load_from.remote(self._synchronizer))

    def _send(self, step: int) -> str:
        if self._group is None:
            self._group = self._meet()
        receiving = self._rollout.receive.remote()
        fsdp_sync_weight_nccl(self.engine, self._group, mode="native", version=step, deadline_s=DEADLINE_S)
        return self._answer(receiving)

    def _meet(self) -> WeightGroup:
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        plan = sync_plan(self.engine).to_json()
        joining = self._rollout.join.remote(self._store.port, plan)
        group = WeightGroup(self._store, 0, 2, timeout_s=DEADLINE_S)
        ray.get(joining, timeout=DEADLINE_S)
        return group

    def _answer(self, call: Any) -> str:
        return str(ray.get(call, timeout=DEADLINE_S))


def make_trainer(folder: Path, steps: int, callback: Any) -> Trainer:
    """A trainer of the demo's model on the demo's conversations."""
    model_directory, data = folder / "untrained", folder / "conversations.json"
    tokenizer = Tokenizer.from_pretrained(str(model_directory), model_max_length=MAX_LENGTH)
    tokenizer.pad_token = tokenizer.unk_token
    args = TrainingArguments(
        output_dir=str(folder / "trained"), use_cpu=True, max_steps=steps, per_device_train_batch_size=4,
        learning_rate=3e-3, model_max_length=MAX_LENGTH, disable_tqdm=True, plot_loss=False,
        save_strategy="no",
    )  # fmt: skip
    module = make_supervised_data_module(tokenizer=tokenizer, data_args=DataArguments(data_path=str(data)))
    model = CausalLM.from_pretrained(str(model_directory))
    return Trainer(model, tokenizer=tokenizer, args=args, callbacks=[callback], **module)


def run(folder: Path, steps: int, every: int) -> list[tuple[int, str, bool, str]]:
    """Train for `steps` steps with a sync every `every`; (step, way, same weights, completion) of each."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "conversations.json"
    data.write_text(packaged_conversations(), encoding="utf-8")
    make_model(folder / "untrained", data, seed=0)
    rollout = ray.remote(Rollout).options(num_cpus=0).remote(str(folder / "untrained"))
    ray.get(rollout.generate.remote(PROMPT, 1), timeout=STARTING_S)
    syncs = Syncs(rollout, folder / "job", every)
    trainer = make_trainer(folder, steps, syncs)
    syncs.engine = FastsftEngine(trainer)
    trainer.train()
    return syncs.events


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output_dir", type=Path, default=Path("rollouts"))
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--every", type=int, default=3, help="steps between syncs")
    args = parser.parse_args()
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80_000_000)
    try:
        events = run(args.output_dir, args.steps, args.every)
    finally:
        ray.shutdown()
    assert all(same for _, _, same, _ in events), "the actor has other weights than the trainer"


if __name__ == "__main__":
    main()
