"""`fastsft export gguf`: llama.cpp's converter in a process of its own, its file checked tensor by tensor."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from family_models import write_family
from fastsft.cli import main as cli
from fastsft.model.gguf.check import difference
from fastsft.model.gguf.conversion import SCRIPT, VARIABLE, stored_outtype
from fastsft.model.gguf.expected import expected_names, expected_value
from gguf_checkouts import real_checkout, stand_in, with_known_tokenizers

REAL = ("llama2", "llama3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "mixtral")
FAULTS = {
    "fails": "the converter ended with status 1: no such architecture",
    "nothing": "it wrote no file",
    "order": "_proj.weight: blk.0.attn_",
    "architecture": "_proj.weight: blk.0.attn_",
    "value": "mlp.up_proj.weight: blk.0.ffn_up.weight: 1 values differ; at [3, 5] expected ",
    "shape": "o_proj.weight: blk.0.attn_output.weight: expected the shape (16, 16), got (15, 16)",
    "missing": "model.norm.weight: expected the tensor output_norm.weight, which is not in the file",
    "large": "down_proj.weight: blk.0.ffn_down.weight: ",
    "more": "the file has tensors that the model has not: blk.0.attn_sinks.weight",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Llama and the stand-in's script."""
    folder = tmp_path_factory.mktemp("gguf")
    return write_family(folder / "model", "llama2"), stand_in(folder / "llama.cpp")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No converter in the environment."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    return monkeypatch


def export(model: Path, *more: object) -> int:
    return cli.main(["export", "gguf", str(model), *map(str, more)])


def test_a_checked_file(
    made: tuple[Path, Path], tmp_path: Path, alone: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, script = made
    out = tmp_path / "x.gguf"
    assert export(model, "--output", out, "--converter", script.parent) == 0
    said = capsys.readouterr().out
    assert f"converting by {script}\n" in said and "each tensor of the file has the model's values" in said
    assert f"written: {out}: llama, 11 tensors, " in said
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]
    written = out.read_bytes()
    alone.setenv(VARIABLE, str(script))
    assert export(model, "--output", out) == 1
    assert "exists; choose another --output, or give --overwrite" in capsys.readouterr().err
    alone.setenv("FAULT", "value")  # a failed export leaves the old file
    assert export(model, "--output", out, "--overwrite") == 1
    assert out.read_bytes() == written and [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.variants("[order]", "[fails]")
def test_a_wrong_file_is_removed(
    fault: str, made: tuple[Path, Path], tmp_path: Path, alone: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    alone.setenv("FAULT", fault)
    assert export(made[0], "--output", tmp_path / "x.gguf", "--converter", made[1]) == 1
    assert FAULTS[fault] in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_converter_is_found_or_named(
    made: tuple[Path, Path], tmp_path: Path, alone: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = made[0], tmp_path / "x.gguf"
    assert export(model, "--output", out) == 1
    said = capsys.readouterr().err
    assert (
        f"llama.cpp's {SCRIPT} is not installed" in said
        and "git clone https://github.com/ggml-org/llama.cpp" in said
    )
    assert export(model, "--output", out, "--converter", tmp_path / "no") == 1
    assert f"--converter: expected llama.cpp's {SCRIPT}, found no file" in capsys.readouterr().err
    alone.setenv(VARIABLE, str(tmp_path))
    assert export(model, "--output", out) == 1
    assert f"{VARIABLE}: expected" in capsys.readouterr().err
    alone.delenv(VARIABLE)
    built = tmp_path / "llama.cpp" / "build" / "bin"
    shutil.copytree(made[1].parent, tmp_path / "llama.cpp")
    built.mkdir(parents=True)
    (built / "llama-server").touch(0o755)
    alone.setenv("PATH", str(built))
    alone.setenv("FAULT", "fails")
    assert export(model, "--output", out) == 1
    assert "the converter ended with status 1" in capsys.readouterr().err


def test_flags_and_code(made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model"
    shutil.copytree(made[0], model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "x.Y"}}))
    assert export(model, "--converter", made[1]) == 1
    assert "it names code of the directory (auto_map)" in capsys.readouterr().err
    for command in (["ollama", "--outtype", "f16"], ["gguf", "--gguf", "x"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(["export", command[0], str(model), *command[1:]])
        assert ended.value.code == 2
        assert f"{command[1]} is no flag of export {command[0]}" in capsys.readouterr().err


def rotated(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (first[i], second[i]) of the last dimension by angle[i]."""
    out = x.clone()
    out[..., first] = x[..., first] * angle.cos() - x[..., second] * angle.sin()
    out[..., second] = x[..., second] * angle.cos() + x[..., first] * angle.sin()
    return out


def test_queries_and_keys_are_in_the_order_of_llama_cpp() -> None:
    """transformers rotates (i, i + half), llama.cpp neighbours; scores are the same after both."""
    generator = torch.Generator().manual_seed(1)
    heads, kv, size, hidden = 4, 2, 8, 16
    q, k = (torch.randn(n * size, hidden, generator=generator, dtype=torch.float64) for n in (heads, kv))
    config = {"num_attention_heads": heads, "num_key_value_heads": kv}
    x, y = torch.randn(2, hidden, generator=generator, dtype=torch.float64)
    angle = torch.rand(2, size // 2, generator=generator, dtype=torch.float64)
    half, even = torch.arange(size // 2), torch.arange(0, size, 2)
    scores = []
    for change in (False, True):
        places = (even, even + 1) if change else (half, half + size // 2)
        rows = []
        for name, weight, vector, angles in (("q", q, x, angle[0]), ("k", k, y, angle[1])):
            value = (
                expected_value(f"a.{name}_proj.weight", weight, "llama", config).double()
                if change
                else weight
            )
            rows.append(rotated((value @ vector).view(-1, size), *places, angles))
        scores.append((rows[0] * rows[1].repeat_interleave(heads // kv, 0)).sum(-1))
    torch.testing.assert_close(scores[0], scores[1], atol=1e-5, rtol=1e-5)
    plain = expected_value("a.q_proj.weight", q, "qwen2", config)
    torch.testing.assert_close(plain, q.float(), atol=0, rtol=0)


def test_names_and_values() -> None:
    names = ["a.experts.3.w1.weight", "a.rotary_emb.inv_freq", "b.weight"]
    known = {"a.experts.w1.weight": "x", "b.weight": "y"}
    assert list(expected_names(names, known.get)) == [
        ("a.experts.3.w1.weight", "x", 3),
        ("b.weight", "y", None),
    ]
    with pytest.raises(ValueError, match=r"c\.weight: the package gguf has no name for it"):
        list(expected_names(["c.weight"], known.get))
    value = torch.tensor([1.0, 70000.0, 1e-9])
    assert "1 values are too large for float16; the way out: --outtype bf16" in difference(
        value, value, "F16"
    )
    assert difference(value, value.bfloat16().float(), "BF16") == "" != difference(value, value, "BF16")
    assert "expected one of F32, F16, BF16, got Q8_0" in difference(value, value, "Q8_0")


@pytest.mark.parametrize(
    ("dtype", "outtype"), [(torch.bfloat16, "bf16"), (torch.float16, "f16"), (None, "f32")]
)
def test_the_stored_type(dtype: torch.dtype | None, outtype: str, tmp_path: Path) -> None:
    both = dtype or torch.float16
    save_file(
        {"a": torch.zeros(2, 2, dtype=both), "b": torch.zeros(2, 2, dtype=dtype), "c": torch.zeros(2)},
        tmp_path / "model.safetensors",
    )
    assert stored_outtype(tmp_path) == outtype


@pytest.mark.thorough
@pytest.mark.parametrize(
    "family", ["llama2", "llama3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "mixtral"]
)
def test_the_real_converter(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With all three types; a changed tensor of the model is found."""
    checkout = real_checkout()
    if checkout is None:
        pytest.skip(f"llama.cpp's converter is not here: {VARIABLE} names its checkout")
    model = write_model(tmp_path / "model", family)
    script = with_known_tokenizers(tmp_path / "llama.cpp", checkout)
    for outtype in (None, "f16", "bf16"):
        more = [] if outtype is None else ["--outtype", outtype]
        out = tmp_path / f"{outtype}.gguf"
        assert export(model, "--output", out, "--converter", script, *more) == 0, capsys.readouterr().err
        assert "checked: each tensor" in capsys.readouterr().out and os.path.getsize(out) > 0


def write_model(folder: Path, family: str) -> Path:
    """A model of `family_models`, or a random one of a family that it has not, with its tokenizer."""
    if family not in ("gemma2", "gemma3", "mixtral"):
        write_family(folder, family)
        tokenizer = folder / "tokenizer.json"
        if tokenizer.exists():  # the converter wants the name of the model, which files of today have
            content = json.loads(tokenizer.read_text())
            content["model"] = {"type": "BPE", **content["model"]}
            tokenizer.write_text(json.dumps(content))
        return folder
    import transformers as hf

    write_family(folder, "llama2")
    sizes = {
        "vocab_size": 32000, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    }  # fmt: skip
    kinds = {
        "gemma2": (hf.Gemma2Config, {}), "gemma3": (hf.Gemma3TextConfig, {}),
        "mixtral": (hf.MixtralConfig, {"num_local_experts": 2, "num_experts_per_tok": 1}),
    }  # fmt: skip
    kind, settings = kinds[family]
    torch.manual_seed(3)
    model = hf.AutoModelForCausalLM.from_config(kind(**sizes, **settings))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder)
    assert load_file(folder / "model.safetensors")
    return folder
