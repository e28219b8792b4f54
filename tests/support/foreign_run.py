"""Real transformers trainers whose models PyTorch wraps, for the tests of saving; run by ranks.run_ranks."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import transformers
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from fastchat.train.train import trainer_save_model_safe as fastchats_save
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy, fully_shard
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Shard

from fastsft import saving
from fastsft.checkpoint.external.units import DistributedTensor, FlatUnit, PlainTensor
from fastsft.checkpoint.external.wrapped import unwrapped

SMALL = {
    "vocab_size": 61, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {"tie_word_embeddings": False}),
    "llama_tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": False}),
    "gpt2": ("GPT2LMHeadModel", {"n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 4}),
    "neox": ("GPTNeoXForCausalLM", {}),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 3}),
    "bert": ("BertForMaskedLM", {}),
}


def make_model(name: str) -> Any:
    """The same weights on every rank."""
    torch.manual_seed(0)
    class_name, options = MODELS[name]
    kind = getattr(transformers, class_name)
    config = kind.config_class(**{**SMALL, **options})
    config.use_cache = False
    return kind(config)


class Tokens:
    """What a trainer needs of a tokenizer."""

    def save_pretrained(self, directory: str) -> None:
        Path(directory, "tokenizer_config.json").write_text("{}\n")


def layer_class(model: nn.Module) -> type[nn.Module]:
    """The class of the model's decoder or encoder blocks."""
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) > 1]
    return type(lists[0][0])


def fsdp1(model: nn.Module, **options: Any) -> nn.Module:
    policy = ModuleWrapPolicy({layer_class(model)})
    return FSDP(model, auto_wrap_policy=policy, device_id=torch.device("cpu"), **options)


def fsdp1_nested(model: nn.Module) -> nn.Module:
    """Blocks with checkpointing inside, MLPs as units of their own, the root with the rest."""
    for name, module in list(model.named_modules()):
        if isinstance(module, layer_class(model)):
            parent, _, leaf = name.rpartition(".")
            module.mlp = FSDP(module.mlp, device_id=torch.device("cpu"))
            wrapped = FSDP(checkpoint_wrapper(module), device_id=torch.device("cpu"))
            setattr(model.get_submodule(parent), leaf, wrapped)
    return FSDP(model, device_id=torch.device("cpu"))


def fsdp2(model: nn.Module) -> nn.Module:
    kind = layer_class(model)
    for module in list(model.modules()):
        if isinstance(module, kind):
            fully_shard(module)
    return fully_shard(model)


def _two_by_two() -> DeviceMesh:
    """Two copies, each sharded over two ranks."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))


def _low_precision() -> MixedPrecision:
    half = torch.bfloat16
    return MixedPrecision(param_dtype=half, reduce_dtype=half, buffer_dtype=half)


def fsdp2_by_columns(model: nn.Module) -> nn.Module:
    """Another placement than FSDP2's own, which torch itself makes whole."""

    def columns(parameter: nn.Parameter) -> Shard | None:
        return Shard(1) if parameter.dim() == 2 and parameter.shape[1] % 2 == 0 else None

    return fully_shard(model, shard_placement_fn=columns)


WRAPS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "fsdp1": functools.partial(fsdp1, use_orig_params=False),
    "fsdp1_orig": functools.partial(fsdp1, use_orig_params=True),
    "fsdp1_mixed": lambda model: fsdp1(model, mixed_precision=_low_precision()),
    "fsdp1_grad_op": lambda model: fsdp1(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP),
    "fsdp1_no_shard": lambda model: fsdp1(model, sharding_strategy=ShardingStrategy.NO_SHARD),
    "fsdp1_nested": fsdp1_nested,
    "fsdp2": fsdp2,
    "fsdp2_by_columns": fsdp2_by_columns,
    "fsdp1_hybrid": lambda model: fsdp1(
        model, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=_two_by_two()
    ),
    "fsdp2_hybrid": lambda model: fully_shard(model, mesh=_two_by_two()),
    "ddp": nn.parallel.DistributedDataParallel,
    "plain": lambda model: model,
}


def make_trainer(model: nn.Module, output: Path, kind: type = transformers.Trainer, **options: Any) -> Any:
    """A trainer as accelerate leaves it when it has wrapped the model itself, which it does on GPUs only."""
    AcceleratorState._reset_state(True)
    args = transformers.TrainingArguments(str(output), use_cpu=True, report_to="none", **options)
    trainer = kind(nn.Linear(1, 1), args, processing_class=Tokens())
    trainer.model = trainer.model_wrapped = model
    if isinstance(model, FSDP):
        AcceleratorState._shared_state["distributed_type"] = DistributedType.FSDP
        AcceleratorState._shared_state["fsdp_plugin"] = SimpleNamespace(
            state_dict_type="FULL_STATE_DICT", fsdp_version=1
        )
        trainer.is_fsdp_enabled = True
    return trainer


def train(model: nn.Module, steps: int = 2) -> None:
    """A few real steps, with other data on every rank."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = _ids() + dist.get_rank()
    for _ in range(steps):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluate(model: nn.Module) -> None:
    """After which FSDP1 leaves its root whole."""
    model.eval()
    with torch.no_grad():
        model(input_ids=_ids())


def _ids() -> torch.Tensor:
    return torch.arange(16).reshape(2, 8)


def _as_rank() -> None:
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29999", ACCELERATE_USE_CPU="true")
    warnings.filterwarnings("ignore", ".*(FSDP|fsdp|NO_SHARD|state_dict).*")
    warnings.filterwarnings("error", ".*in its own way.*")  # nothing here falls back


def save_both(groups: Any, model_name: str, wrap: str, output: Path, trained: bool = True) -> None:
    """Save by fastsft into `ours` and by the judge into `theirs`; trained models also evaluate before it."""
    _as_rank()
    model = WRAPS[wrap](make_model(model_name))
    trainer = make_trainer(model, output / "ours")
    if trained:
        train(model)
        evaluate(model)
    saving.trainer_save_model_safe(trainer)
    save_by_judge(trainer, wrap, output / "theirs")
    dist.barrier()


@contextlib.contextmanager
def _stay(handle: Any) -> Iterator[None]:
    """In place of FlatParamHandle.to_cpu: torch 2.11's frees a unit that is on the CPU already."""
    yield


def save_by_judge(trainer: Any, wrap: str, output: Path) -> None:
    """FastChat's function; for FSDP2, of which it knows nothing, torch's gathered full state dict."""
    if wrap.startswith("fsdp2"):
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(trainer.model, options=options)
        if dist.get_rank() == 0:
            trainer._save(str(output), state)
    elif wrap in ("ddp", "plain"):
        if dist.get_rank() == 0:
            trainer.model, wrapped = unwrapped(trainer.model), trainer.model
            trainer._save(str(output))
            trainer.model = wrapped
    else:
        trainer.args.output_dir, before = str(output), trainer.args.output_dir
        with mock.patch.object(FlatParamHandle, "to_cpu", _stay):
            fastchats_save(trainer)
        trainer.args.output_dir = before


FAILURES = {"tokenizer": "no tokenizer files", "disk": "cannot write", "other rank": "no memory on rank 1"}


def _outcome(trainer: Any) -> str:
    try:
        saving.trainer_save_model_safe(trainer)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def fail_to_save(groups: Any, wrap: str, where: str, output: Path) -> str:
    """What this rank raises when one of the ranks fails."""
    _as_rank()
    trainer = make_trainer(WRAPS[wrap](make_model("llama")), output)
    rank = dist.get_rank()
    if where == "tokenizer":
        trainer.processing_class = Refusing()
    elif where == "disk" and rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    elif where == "other rank" and rank == 1:
        for kind in (PlainTensor, DistributedTensor, FlatUnit):
            kind.prepare = _no_memory
    return _outcome(trainer)


class Refusing(Tokens):
    """A tokenizer that cannot be saved."""

    def save_pretrained(self, directory: str) -> None:
        super().save_pretrained(directory)
        raise OSError(FAILURES["tokenizer"])


def _no_memory(unit: Any) -> None:
    raise RuntimeError(FAILURES["other rank"])


def save_different_models(groups: Any, output: Path) -> str:
    """What this rank raises when the ranks do not have the same weights."""
    _as_rank()
    return _outcome(make_trainer(make_model("llama" if dist.get_rank() == 0 else "qwen2"), output))
