"""Hugging Face directories in and out of the engine on one rank, judged by transformers and safetensors."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from fastsft import _C
from tiny_models import make_engine, weights_of, write_model

LAYERNORM = "model.layers.1.input_layernorm.weight"


def same_bits(left, right):
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype and tensor.shape == right[name].shape, name
        assert torch.equal(tensor.view(torch.uint8), right[name].view(torch.uint8)), name


def edited(model, tmp_path, **changes):
    """A copy of a model directory with tensors changed, added or (None) removed."""
    tensors = {**load_file(model / "model.safetensors"), **changes}
    save_file(
        {name: t for name, t in tensors.items() if t is not None},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    (tmp_path / "config.json").write_text((model / "config.json").read_text())
    return tmp_path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("limit", ["5GB", "10KB"])
def test_round_trip_is_bit_equal(tmp_path, kind, dtype, limit):
    source = write_model(tmp_path / "in", kind, dtype, limit)
    out = tmp_path / "out"
    out.mkdir()
    engine = make_engine(source)
    _C.save_model(engine, str(out), dtype=dtype, max_shard_size=10_000 if limit == "10KB" else 5 * 10**9)
    same_bits(weights_of(source), weights_of(out))
    # The split, the names and the index are those of transformers.
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in source.glob("model*"))
    for path in out.glob("*.json"):
        assert path.read_text() == (source / path.name).read_text()
    for path in out.glob("*.safetensors"):
        assert load_file(path).keys() == load_file(source / path.name).keys()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_is_torchs(tmp_path, model, dtype):
    _C.save_model(make_engine(model), str(tmp_path), dtype=dtype)
    expected = {name: tensor.to(getattr(torch, dtype)) for name, tensor in weights_of(model).items()}
    same_bits(expected, weights_of(tmp_path))


def test_transformers_opens_the_result_and_computes_our_logits(tmp_path, model):
    from transformers import AutoModelForCausalLM

    engine = make_engine(model)
    _C.save_model(engine, str(tmp_path), max_shard_size=20_000)
    (tmp_path / "config.json").write_text((model / "config.json").read_text())
    # eager: sdpa leaves out Gemma 2's bound of scores.
    opened, report = AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report.values()), report
    ids = torch.arange(1, 20)
    with torch.no_grad():
        theirs = opened(ids[None]).logits[0]
    ours = engine.logits(ids.numpy(), [len(ids)])
    assert (ours - theirs).norm() / theirs.norm() < 1e-5


def test_digests_are_of_the_files(tmp_path, model):
    digests = _C.save_model(make_engine(model), str(tmp_path), max_shard_size=10_000)
    assert sorted(digest.name for digest in digests) == sorted(path.name for path in tmp_path.iterdir())
    for digest in digests:
        content = (tmp_path / digest.name).read_bytes()
        assert (digest.size, digest.crc32c) == (len(content), _C.crc32c(content))


def test_an_earlier_save_leaves_nothing_behind(tmp_path, model):
    engine = make_engine(model)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "pytorch_model.bin").write_text("not ours to delete")
    for limit in [10_000, 5 * 10**9, 30_000]:
        _C.save_model(engine, str(tmp_path), max_shard_size=limit)
        same_bits(weights_of(model), weights_of(tmp_path))
        expected = set(weights_of(tmp_path))
        found = [set(load_file(path)) for path in tmp_path.glob("*.safetensors")]
        assert set.union(*found) == expected and sum(map(len, found)) == len(expected)
        assert not list(tmp_path.glob(".fastsft*"))
    assert (tmp_path / "notes.txt").exists() and (tmp_path / "pytorch_model.bin").exists()


def test_saving_where_there_is_no_directory(tmp_path, model):
    with pytest.raises(RuntimeError, match=r"cannot create .*missing"):
        _C.save_model(make_engine(model), str(tmp_path / "missing"))


def test_float16_overflow_is_an_error_and_leaves_nothing(tmp_path, models):
    source = edited(models["untied"], tmp_path, **{LAYERNORM: torch.full((32,), 7e4)})
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ValueError, match=rf"{LAYERNORM}.*70000.*float16.*save_dtype"):
        _C.save_model(make_engine(source), str(out), dtype="float16")
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({LAYERNORM: None}, rf"tensors missing: 1 \({LAYERNORM}\)"),
        ({"lm_head.weight": None}, r"tensors missing: 1 \(lm_head.weight\)"),
        ({"extra.weight": torch.zeros(2)}, r"does not have: 1 \(extra.weight\)"),
        ({LAYERNORM: torch.zeros(33)}, rf"{LAYERNORM}: expected shape \[32\], got \[33\]"),
        ({LAYERNORM: torch.zeros(1, 32)}, rf"{LAYERNORM}: expected shape \[32\], got \[1, 32\]"),
        (
            {LAYERNORM: torch.zeros(32, dtype=torch.int8)},
            f"{LAYERNORM}: expected F32, F16, BF16 or F64, got I8",
        ),
    ],
)
def test_weights_that_do_not_fit(tmp_path, models, changes, message):
    source = edited(models["untied"], tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        make_engine(source)


def test_many_missing_tensors_are_counted(tmp_path, models):
    names = [name for name in load_file(models["untied"] / "model.safetensors") if ".layers." in name]
    source = edited(models["untied"], tmp_path, **dict.fromkeys(names))
    with pytest.raises(ValueError, match=rf"tensors missing: {len(names)} .*\.\.\."):
        make_engine(source)


def test_rotary_tables_of_old_checkpoints_are_ignored(tmp_path, models):
    source = edited(
        models["untied"], tmp_path, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    )
    engine = _C.Engine((source / "config.json").read_text())
    assert _C.load_model(engine, str(source)) == []


def test_a_tied_model_ignores_its_head(tmp_path, models):
    embedding = load_file(models["tied"] / "model.safetensors")["model.embed_tokens.weight"]
    text = (models["tied"] / "config.json").read_text()
    for head, noted in [(embedding.clone(), False), (embedding + 1, True)]:
        source = edited(models["tied"], tmp_path, **{"lm_head.weight": head})
        engine = _C.Engine(text)
        notes = _C.load_model(engine, str(source))
        assert len(notes) == noted and all("lm_head.weight" in note for note in notes)
        assert torch.equal(engine.named_parameters()["model.embed_tokens.weight"], embedding)


def test_float64_is_read(tmp_path, models):
    source = edited(models["untied"], tmp_path, **{LAYERNORM: torch.full((32,), 1 / 3, dtype=torch.float64)})
    found = make_engine(source).named_parameters()[LAYERNORM]
    assert torch.equal(found, torch.full((32,), 1 / 3))


def test_an_index_that_leads_outside_is_refused(tmp_path, models):
    (tmp_path / "config.json").write_text((models["untied"] / "config.json").read_text())
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x"}}))
    with pytest.raises(ValueError, match="same directory"):
        make_engine(tmp_path)
