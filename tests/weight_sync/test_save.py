"""fsdp_save_state_dict on several ranks: right bytes, all ranks or none, frozen when it is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fastsft import _C
from fastsft.weight_sync import CheckpointCoordinator, fsdp_save_state_dict, read_state_dict
from ranks import run_ranks
from weight_sync_parts import save_world
from weight_sync_parts.modules import make_engine, make_model, state_of_model

# Three ranks for what differs with their number: odd sizes, and the wrappers that shard.
KINDS = {2: save_world.KINDS, 3: ("fsdp1", "fsdp2")}
CASES = [
    (ranks, f"{kind}-{tied}") for ranks, kinds in KINDS.items() for kind in kinds for tied in (False, True)
]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """number of ranks -> (folder, what each case's model held)."""
    folders = {ranks: tmp_path_factory.mktemp("saved") for ranks in KINDS}
    return {
        ranks: (folders[ranks], run_ranks(ranks, save_world.everything, str(folders[ranks]), kinds)[0])
        for ranks, kinds in KINDS.items()
    }


def expected_of(states: dict[str, Any], case: str) -> dict[str, torch.Tensor]:
    state = dict(states[case])
    if case.endswith("True"):
        del state["head.weight"]
    return state


def merged_by_the_rules_of_verl(folder: Path) -> dict[str, torch.Tensor]:
    """docs/spec/weight_sync.md, section 2.3: keys of shard 0, layout of the first sorted key."""
    from torch.distributed.tensor import DTensor

    world_size = json.loads((folder / "fsdp_config.json").read_text())["world_size"]
    shards = [
        torch.load(folder / f"model_world_size_{world_size}_rank_{rank}.pt", weights_only=False)
        for rank in range(world_size)
    ]
    pivot = shards[0][sorted(shards[0])[0]]
    assert isinstance(pivot, DTensor)
    assert pivot.device_mesh.mesh_dim_names == ("fsdp",)
    assert pivot.device_mesh.mesh.shape[-1] == world_size
    merged = {}
    for key in shards[0]:
        parts = [shard[key] for shard in shards]
        assert all(isinstance(part, DTensor) for part in parts), f"{key} is a plain tensor"
        (placement,) = parts[0].placements
        locals_ = [part._local_tensor for part in parts]
        merged[key] = locals_[0] if placement.is_replicate() else torch.cat(locals_, dim=placement.dim)
    return merged


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in right.items():
        assert left[name].dtype == tensor.dtype, name
        assert torch.equal(left[name], tensor), name


@pytest.mark.parametrize(("world_size", "case"), CASES)
@pytest.mark.parametrize("save_format", save_world.FORMATS)
def test_saved_weights_are_the_models(worlds: Any, world_size: int, case: str, save_format: str) -> None:
    folder, states = worlds[world_size]
    path = folder / f"{case}-{save_format}" / "actor"
    expected = expected_of(states, case)
    same(read_state_dict(path, checksums=True), expected)
    manifest = _C.read_manifest(str(path))
    assert (manifest.step, manifest.world_size) == (0, world_size)
    assert not list(path.glob(".*"))
    if save_format == "verl_pt":
        same(merged_by_the_rules_of_verl(path), expected)
    if save_format == "hf":
        from safetensors.torch import load_file

        same(load_file(path / "model.safetensors"), expected)


@pytest.mark.parametrize(("world_size", "case"), CASES)
def test_small_files_are_there(worlds: Any, world_size: int, case: str) -> None:
    folder, _ = worlds[world_size]
    path = folder / f"{case}-verl_pt" / "actor"
    config = json.loads((path / "fsdp_config.json").read_text())
    assert config == {"FSDP_version": 1 if case.startswith("fsdp1") else 2, "world_size": world_size}
    assert json.loads((path / "huggingface" / "config.json").read_text())["model_type"] == "llama"
    assert (path / "huggingface" / "tokenizer_config.json").read_text() == "{}"
    listed = {file.name: (file.size, file.crc32c) for file in _C.read_manifest(str(path)).files}
    there = {str(file.relative_to(path)): file for file in path.rglob("*") if file.is_file()}
    del there["manifest.json"]
    assert "huggingface/config.json" in there and listed.keys() == there.keys()
    for name, file in there.items():
        content = file.read_bytes()
        assert listed[name] == (len(content), _C.crc32c(content)), name


@pytest.mark.parametrize("world_size", KINDS)
def test_a_rank_without_rows_has_an_empty_shard(worlds: Any, world_size: int) -> None:
    folder, _ = worlds[world_size]
    path = (
        folder / "fsdp2-False-verl_pt" / "actor" / f"model_world_size_{world_size}_rank_{world_size - 1}.pt"
    )
    gain = torch.load(path, weights_only=False)["blocks.0.gain"]
    assert (gain._local_tensor.shape, gain.shape) == ((0,), (1,))


def test_one_failing_rank_fails_all_and_leaves_nothing(tmp_path: Path) -> None:
    for outcome in run_ranks(2, save_world.faults, str(tmp_path)):
        assert len(outcome["heard"]) == 2
        for message in outcome["heard"]:
            assert "saving step 1 to" in message and "rank 1 failed: No space left on device" in message
        assert outcome["left"] == []
        weights = [f"model-0000{rank}-of-00002.safetensors" for rank in (0, 1)]
        assert outcome["native"] == ["fsdp_config.json", "huggingface", "manifest.json", *weights]
        shards = [f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1)]
        assert outcome["again"] == ["fsdp_config.json", "huggingface", "manifest.json", *shards]


def test_tied_names_with_different_values_are_refused(tmp_path: Path) -> None:
    for message in run_ranks(2, save_world.apart, str(tmp_path)):
        assert "head.weight and embed.weight are tied by config.json but hold different values" in message
    assert not (tmp_path / "apart" / "manifest.json").exists()


def test_a_silent_rank_is_named_within_the_deadline(tmp_path: Path) -> None:
    first, second = run_ranks(2, save_world.silent, str(tmp_path))
    assert "rank 1 did not report within 1 seconds" in first
    assert second == "saved"
    assert read_state_dict(tmp_path / "silent")


def check_race(tmp_path: Path, times: int) -> None:
    frozen = run_ranks(2, save_world.race, str(tmp_path), times, seconds=1200.0)[0]
    assert len(frozen) == times
    for whole, path in frozen:
        same(read_state_dict(path), whole)


def test_training_goes_on_while_a_frozen_copy_is_written(tmp_path: Path) -> None:
    check_race(tmp_path, 5)


@pytest.mark.chaos
def test_training_goes_on_a_hundred_times(tmp_path: Path) -> None:
    check_race(tmp_path, 100)


def test_the_original_path_tears(tmp_path: Path) -> None:
    """FSDP2's state dict aliases live parameters: what a thread writes is not what was there."""
    (outcome, _) = run_ranks(2, save_world.original_tears, str(tmp_path))
    assert outcome == "another step's values"


def test_no_path_saves_nothing() -> None:
    assert fsdp_save_state_dict(None, None, 3, None, None) is None


def test_one_process_without_a_group(tmp_path: Path) -> None:
    model = make_model(False)
    engine = make_engine(model, "plain")
    coordinator = CheckpointCoordinator()
    for dtype in (None, "bfloat16"):
        ticket = fsdp_save_state_dict(
            engine, str(tmp_path / str(dtype)), 1, coordinator, save_world.LOGGER, save_dtype=dtype
        )
        assert ticket is not None
        ticket.wait()
    same(read_state_dict(tmp_path / "None"), state_of_model(model))
    narrow = {
        name: tensor.bfloat16() if name in dict(model.named_parameters()) else tensor
        for name, tensor in state_of_model(model).items()
    }
    same(read_state_dict(tmp_path / "bfloat16"), narrow)


@pytest.mark.parametrize(("option", "message"), [
    ({"format": "zip"}, "format: expected one of hf, native, verl_pt, got 'zip'"),
    ({"save_dtype": "int8"}, "save_dtype: expected float32, bfloat16"),
])  # fmt: skip
def test_unknown_options_are_refused(tmp_path: Path, option: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fsdp_save_state_dict(None, str(tmp_path), 1, None, None, **option)


@pytest.mark.parametrize("save_format", ["hf", "native"])
def test_the_name_that_safetensors_keeps_is_refused(tmp_path: Path, save_format: str) -> None:
    module = torch.nn.ParameterDict({"__metadata__": torch.nn.Parameter(torch.ones(2))})
    coordinator = CheckpointCoordinator()
    fsdp_save_state_dict(
        make_engine(module, "plain"), str(tmp_path), 1, coordinator, save_world.LOGGER, format=save_format
    )
    with pytest.raises(RuntimeError, match="__metadata__, which safetensors keeps for itself"):
        coordinator.wait_all()
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize("damage", ["missing manifest", "short", "changed"])
def test_damaged_saves_are_not_read(tmp_path: Path, damage: str) -> None:
    coordinator = CheckpointCoordinator()
    engine = make_engine(make_model(False), "plain")
    fsdp_save_state_dict(engine, str(tmp_path), 1, coordinator, save_world.LOGGER, format="hf")
    coordinator.wait_all()
    weights = tmp_path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    if damage == "missing manifest":
        (tmp_path / "manifest.json").unlink()
    content[-1] ^= damage == "changed"
    weights.write_bytes(content[:-4] if damage == "short" else content)
    with pytest.raises(ValueError, match="not a complete save"):
        read_state_dict(tmp_path, checksums=True)


@pytest.mark.parametrize("damage", ["missing", "short", "changed"])
def test_a_damaged_configuration_is_noticed(tmp_path: Path, damage: str) -> None:
    coordinator = CheckpointCoordinator()
    fsdp_save_state_dict(
        make_engine(make_model(False), "plain"), str(tmp_path), 1, coordinator, save_world.LOGGER
    )
    coordinator.wait_all(60)
    config = tmp_path / "huggingface" / "config.json"
    content = config.read_bytes()
    config.write_bytes(content[:-1] if damage == "short" else content.replace(b"llama", b"lLama"))
    if damage == "missing":
        config.unlink()
    with pytest.raises(ValueError, match=r"not a complete save: huggingface/config\.json: "):
        read_state_dict(tmp_path, checksums=damage == "changed")


def test_small_files_of_an_earlier_save_do_not_stay(tmp_path: Path) -> None:
    coordinator = CheckpointCoordinator()
    engine = make_engine(make_model(False), "plain")
    fsdp_save_state_dict(engine, str(tmp_path), 1, coordinator, save_world.LOGGER)
    engine.checkpoint_manager.processing_class = None
    fsdp_save_state_dict(engine, str(tmp_path), 2, coordinator, save_world.LOGGER)
    coordinator.wait_all(60)
    names = sorted(path.name for path in (tmp_path / "huggingface").iterdir())
    assert names == ["config.json"] and read_state_dict(tmp_path, checksums=True)


def test_two_trainers_do_not_save_into_one_directory_at_once(tmp_path: Path) -> None:
    engine, coordinator = make_engine(make_model(False), "plain"), CheckpointCoordinator()
    fsdp_save_state_dict(engine, str(tmp_path), 1, coordinator, save_world.LOGGER)
    coordinator.wait_all(60)
    other = _C.RunLock(str(tmp_path))
    fsdp_save_state_dict(engine, str(tmp_path), 2, coordinator, save_world.LOGGER)
    with pytest.raises(RuntimeError, match=r"in use by another save \(host .*give every trainer its own"):
        coordinator.wait_all(60)
    assert _C.read_manifest(str(tmp_path)).step == 1 and read_state_dict(tmp_path, checksums=True)
    other.release()
    fsdp_save_state_dict(engine, str(tmp_path), 2, coordinator, save_world.LOGGER)
    coordinator.wait_all(60)
    assert _C.read_manifest(str(tmp_path)).step == 2


NEW_DTYPES = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32")


def with_new_dtypes() -> Any:
    """A parameter and a buffer of each type that torch writes in another way than the older ones."""
    module = torch.nn.Module()
    for name in NEW_DTYPES:
        values = torch.arange(10).reshape(5, 2).to(getattr(torch, name))
        module.register_parameter(name, torch.nn.Parameter(values, requires_grad=False))
        module.register_buffer(f"{name}_buffer", values[1:4].clone())
    return module


def save_new_dtypes(_: Any, folder: str) -> None:
    coordinator = CheckpointCoordinator()
    fsdp_save_state_dict(make_engine(with_new_dtypes(), "plain"), folder, 1, coordinator, save_world.LOGGER)
    coordinator.wait_all()


@pytest.mark.parametrize("ranks", [1, 2])
def test_tensors_of_float8_and_unsigned_types_are_read(tmp_path: Path, ranks: int) -> None:
    run_ranks(ranks, save_new_dtypes, str(tmp_path / "actor"))
    expected = with_new_dtypes().state_dict()
    found = read_state_dict(tmp_path / "actor")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(found[name].double(), tensor.double()), name


def test_state_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    class Extra(torch.nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"calls": 3}

    engine = make_engine(Extra(2, 2), "plain")
    with pytest.raises(ValueError, match="_extra_state: expected a tensor, got dict"):
        fsdp_save_state_dict(engine, str(tmp_path), 1, CheckpointCoordinator(), save_world.LOGGER)


def test_keys_none_of_auto_map_are_not_saved(tmp_path: Path) -> None:
    engine = make_engine(make_model(False), "plain")
    engine.module.config.auto_map = {None: "x.Y", "AutoModel": "x.Z"}
    coordinator = CheckpointCoordinator()
    fsdp_save_state_dict(engine, str(tmp_path), 1, coordinator, save_world.LOGGER)
    coordinator.wait_all()
    assert json.loads((tmp_path / "huggingface" / "config.json").read_text())["auto_map"] == {
        "AutoModel": "x.Z"
    }
    assert None in engine.module.config.auto_map


def test_weights_left_by_a_killed_save_do_not_stay(tmp_path: Path) -> None:
    """In another format than the next save: unlisted weights would make the directory unreadable."""
    left = ["model.safetensors", "model-00002-of-00004.safetensors", "model_world_size_4_rank_3.pt"]
    for name in left:
        (tmp_path / name).write_bytes(b"half")
    coordinator = CheckpointCoordinator()
    engine = make_engine(make_model(False), "plain")
    fsdp_save_state_dict(engine, str(tmp_path), 1, coordinator, save_world.LOGGER, format="native")
    coordinator.wait_all()
    assert not any((tmp_path / name).exists() for name in left)
    assert read_state_dict(tmp_path)


class NeverRuns:
    """A coordinator, not ours, whose thread dies before it calls."""

    def __init__(self) -> None:
        self.works: list[Any] = []

    def save_async(self, name: str, work: Any, step: int, is_state_dict: bool = False) -> None:
        self.works.append(work)


def test_a_save_that_never_runs_blocks_no_later_one(tmp_path: Path) -> None:
    engine = make_engine(make_model(False), "plain")
    coordinator = NeverRuns()
    ticket = fsdp_save_state_dict(engine, str(tmp_path / "1"), 1, coordinator, save_world.LOGGER)
    assert ticket is not None and not ticket.done()
    with pytest.raises(RuntimeError, match=r"the save before this one has not ended for 0\.1 seconds"):
        fsdp_save_state_dict(engine, str(tmp_path / "2"), 2, coordinator, save_world.LOGGER, deadline_s=0.1)
    coordinator.works[1]()
    assert read_state_dict(tmp_path / "2")


def test_every_rank_hears_of_a_monitor_that_refuses(tmp_path: Path) -> None:
    for ticket, waited in run_ranks(2, save_world.refused, str(tmp_path)):
        assert "actor died" in ticket and "actor died" in waited
    assert not list(tmp_path.rglob("manifest.json"))
