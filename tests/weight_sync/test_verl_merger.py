"""veRL's own FSDPModelMerger on our shards. Needs `pip install --no-deps verl`: its file alone is loaded."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from ranks import run_ranks
from weight_sync_parts import save_world


def merger_class() -> Any:
    """The class from the installed package, without what the package imports (vLLM, tensordict, ...)."""
    try:
        files = importlib.metadata.files("verl") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("verl is not installed (pip install --no-deps verl)")
    source = next(file.locate() for file in files if file.name == "fsdp_model_merger.py")
    package = types.ModuleType("verl_merger")
    package.__path__ = []  # type: ignore[attr-defined]
    base = types.ModuleType("verl_merger.base_model_merger")
    base.BaseModelMerger = object  # type: ignore[attr-defined]
    sys.modules.update({"verl_merger": package, "verl_merger.base_model_merger": base})
    spec = importlib.util.spec_from_file_location("verl_merger.fsdp_model_merger", str(source))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FSDPModelMerger


@pytest.mark.chaos
@pytest.mark.parametrize("world_size", [2, 3])
def test_verl_merges_our_shards(tmp_path: Path, world_size: int) -> None:
    make = merger_class()
    states = run_ranks(world_size, save_world.everything, str(tmp_path), ("fsdp1", "fsdp2"))[0]
    for case, expected in states.items():
        merger = make.__new__(make)
        merger.config = types.SimpleNamespace(local_dir=str(tmp_path / f"{case}-verl_pt" / "actor"))
        ranks = merger._get_world_size()
        first = merger._load_rank_zero_state_dict(ranks)
        mesh, names = merger._extract_device_mesh_info(first, ranks)
        total, shape = merger._calculate_shard_configuration(mesh, names)
        assert (ranks, names, total) == (world_size, ("fsdp",), world_size)
        merged = merger._load_and_merge_state_dicts(ranks, total, shape, names)
        kept = {name: t for name, t in expected.items() if name != "head.weight" or case.endswith("False")}
        assert merged.keys() == kept.keys()
        for name, tensor in kept.items():
            assert torch.equal(merged[name], tensor.bfloat16()), name
