"""A small model with everything that goes wrong: tied heads, odd sizes, fewer rows than ranks, buffers."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig

WRAPPERS = ("plain", "ddp", "fsdp1", "fsdp1_orig", "fsdp2")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 7)
        self.down = nn.Linear(7, 4, bias=False)
        self.gain = nn.Parameter(torch.randn(1))
        self.register_buffer("scale", torch.rand(1))
        self.register_buffer("cache", torch.rand(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * self.scale * self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    """`a_count` sorts first: a replicated buffer is what veRL's merger looks at for the layout."""

    _tied_weights_keys = ("head.weight",)

    def __init__(self, tied: bool, apart: bool = False, rows: int = 11) -> None:
        super().__init__()
        self.config = LlamaConfig(tie_word_embeddings=tied, vocab_size=rows, hidden_size=4)
        self.register_buffer("a_count", torch.arange(5))
        self.embed = nn.Embedding(rows, 4)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(4, rows, bias=False)
        if tied and not apart:
            self.head.weight = self.embed.weight

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_model(tied: bool, **options: Any) -> Model:
    torch.manual_seed(3)
    return Model(tied, **options)


def wrap(model: nn.Module, kind: str) -> nn.Module:
    """The model under a wrapper of torch, blocks nested in it."""
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=("fsdp",))
        for block in getattr(model, "blocks", ()):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    if kind.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        shard = functools.partial(FSDP, device_id=torch.device("cpu"), use_orig_params=kind.endswith("orig"))
        return shard(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
    return model


class Tokens:
    """What a save needs of a tokenizer."""

    def save_pretrained(self, folder: str) -> None:
        from pathlib import Path

        Path(folder, "tokenizer_config.json").write_text("{}")


def make_engine(module: nn.Module, kind: str, *, per_tensor: bool = True) -> Any:
    """As veRL's engine: FSDP2's `get_per_tensor_param` yields the state dict's tensors one by one."""
    engine = SimpleNamespace(
        module=module,
        _strategy="fsdp" if kind.startswith("fsdp1") else "fsdp2",
        checkpoint_manager=SimpleNamespace(processing_class=Tokens()),
    )
    if per_tensor and not kind.startswith("fsdp1"):
        inner = module.module if kind == "ddp" else module
        engine.get_per_tensor_param = lambda: (iter(inner.state_dict().items()), None)
    return engine


def state_of_model(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of everything that a save must contain."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def train(module: nn.Module, optimizer: Any, seed: int, rows: int = 11) -> None:
    """One optimizer step."""
    ids = torch.randint(0, rows, (2, 5), generator=torch.Generator().manual_seed(seed))
    module(ids).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
