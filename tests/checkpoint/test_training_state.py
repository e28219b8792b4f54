"""Master weights and moments through files, on one rank."""

import json
import struct

import pytest
import torch
from safetensors import safe_open

from fastsft import _C
from tiny_models import make_engine, train

FILE = "optimizer-rank-00000-of-00001.safetensors"


def rewrite_metadata(path, change):
    """Changes the layout that an optimizer file states, leaving its data."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    layout = json.loads(header["__metadata__"]["fastsft"])
    change(layout)
    header["__metadata__"]["fastsft"] = json.dumps(layout)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
def test_a_loaded_state_goes_on_bit_for_bit(tmp_path, model, compute_dtype):
    first = make_engine(model, compute_dtype=compute_dtype)
    train(first, 2)
    digest = _C.save_training_state(first, str(tmp_path))
    content = (tmp_path / FILE).read_bytes()
    assert (digest.name, digest.size, digest.crc32c) == (FILE, len(content), _C.crc32c(content))
    second = make_engine(model, compute_dtype=compute_dtype)
    _C.load_training_state(second, str(tmp_path))
    second.step_count = first.step_count
    assert train(first, 3) == train(second, 3)
    expected, found = first.named_parameters(), second.named_parameters()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


def test_the_moments_matter(tmp_path, model):
    """Without the moments the next steps differ: the test above would notice."""
    first = make_engine(model)
    train(first, 2)
    _C.save_model(first, str(tmp_path))
    (tmp_path / "config.json").write_text((model / "config.json").read_text())
    second = make_engine(tmp_path)
    second.step_count = first.step_count
    assert train(first, 3)[2] != train(second, 3)[2]


def test_file_is_plain_safetensors(tmp_path, model):
    engine = make_engine(model)
    _C.save_training_state(engine, str(tmp_path))
    with safe_open(tmp_path / FILE, "pt") as file:
        names = [
            f"{unit}.{part}" for unit in engine.unit_names for part in ("master", "exp_avg", "exp_avg_sq")
        ]
        assert sorted(file.keys()) == sorted(names)
        layout = json.loads(file.metadata()["fastsft"])
        assert [unit["hash"] for unit in layout["units"]] == engine.unit_hashes
        assert (layout["rank"], layout["world_size"]) == (0, 1)
        for unit in layout["units"]:
            assert file.get_tensor(unit["name"] + ".exp_avg").abs().sum() == 0
            assert len(file.get_tensor(unit["name"] + ".master")) == unit["end"] - unit["begin"]


def test_another_model_is_refused(tmp_path, models):
    _C.save_training_state(make_engine(models["untied"]), str(tmp_path))
    with pytest.raises(ValueError, match=r"another model|another shape"):
        _C.load_training_state(make_engine(models["tied"]), str(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda layout: layout["units"][1].update(hash="0" * 16), "another shape"),
        (lambda layout: layout["units"].pop(), "no state for unit"),
        (
            lambda layout: layout["units"][0].update(begin=5, end=layout["units"][0]["end"] + 5),
            "elements from 0 on",
        ),
        (
            lambda layout: layout["units"][0].update(end=layout["units"][0]["end"] - 1),
            "F32 elements|elements from",
        ),
        (lambda layout: layout["units"][0].update(begin=-1), "a range of elements"),
        (lambda layout: layout.update(format_version=2), "format version 2"),
        (lambda layout: layout.pop("rank"), "damaged metadata"),
    ],
)
def test_layouts_that_do_not_fit(tmp_path, models, change, message):
    engine = make_engine(models["untied"])
    _C.save_training_state(engine, str(tmp_path))
    rewrite_metadata(tmp_path / FILE, change)
    with pytest.raises(ValueError, match=message):
        _C.load_training_state(engine, str(tmp_path))


def test_files_that_are_missing(tmp_path, models):
    engine = make_engine(models["untied"])
    with pytest.raises(ValueError, match=r"found none.*optimizer\.pt"):
        _C.load_training_state(engine, str(tmp_path))
    _C.save_training_state(engine, str(tmp_path))
    (tmp_path / FILE).rename(tmp_path / "optimizer-rank-00001-of-00002.safetensors")
    with pytest.raises(ValueError, match=r"optimizer-rank-00000-of-00002.safetensors is missing"):
        _C.load_training_state(engine, str(tmp_path))
