"""Checkouts of llama.cpp: a small stand-in for its converter and its package gguf, and a real one.

The stand-in keeps tensors in a .npz file. It knows what the check asks of gguf: names, types, values.
"""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = '''
import numpy

MODEL_ARCH_NAMES = {1: "llama", 2: "qwen2"}


class Map:
    """The names of Llama's tensors."""

    def get_name(self, name, suffixes):
        stem, suffix = name.rsplit(".", 1)
        known = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
        kinds = {
            "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
            "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output",
            "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        }
        if stem.startswith("model.layers."):
            _, _, number, kind = stem.split(".", 3)
            return f"blk.{number}.{kinds[kind]}.{suffix}" if kind in kinds else None
        return f"{known[stem]}.{suffix}" if stem in known else None


def get_tensor_name_map(kind, blocks):
    return Map()


class Kind:
    def __init__(self, name):
        self.name = name


class Tensor:
    def __init__(self, name, data):
        self.name, self.data, self.tensor_type = name, data, Kind("F16" if data.dtype == "float16" else "F32")


class Field:
    def __init__(self, text):
        self.contents = lambda: text


class GGUFReader:
    def __init__(self, path):
        with open(path, "rb") as file:
            values = dict(numpy.load(file))
        self._field = Field(str(values.pop("general.architecture")))
        self.tensors = [Tensor(name, value) for name, value in values.items()]

    def get_field(self, name):
        return self._field


class quants:
    dequantize = staticmethod(lambda data, kind: data.astype("float32"))
'''
_SCRIPT = """
import json, os, sys
from pathlib import Path

import numpy
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parent / "gguf-py"))
import gguf

model, _, out, _, kind = sys.argv[1:]
fault = os.environ.get("FAULT", "")
if fault == "fails":
    sys.exit("no such architecture")
config = json.loads(Path(model, "config.json").read_text())
heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
made = {"general.architecture": "qwen2" if fault == "architecture" else "llama"}
for name, value in load_file(Path(model, "model.safetensors")).items():
    part = name.split(".")[-2]
    if part in ("q_proj", "k_proj") and fault != "order":
        parts = value.reshape(heads[part[0]], 2, -1, *value.shape[1:])
        rows = [numpy.stack(list(pair), 1).reshape(-1, *value.shape[1:]) for pair in parts]
        value = numpy.concatenate(rows)
    if fault == "value" and part == "up_proj":
        value = value.copy()
        value[3, 5] += 1e-6
    if fault == "shape" and part == "o_proj":
        value = value.T[:-1]
    if fault == "missing" and part == "norm":
        continue
    if fault == "large" and part == "down_proj":
        value = value * 1e9
    dtype = "f2" if kind == "f16" and value.ndim > 1 else "f4"
    made[gguf.Map().get_name(name, ())] = value.astype(dtype)
if fault == "more":
    made["blk.0.attn_sinks.weight"] = numpy.zeros(2)
if fault != "nothing":
    with open(out, "wb") as file:
        numpy.savez(file, **made)
"""


def stand_in(folder: Path) -> Path:
    """Write a checkout with the stand-ins; return its script."""
    (folder / "gguf-py" / "gguf").mkdir(parents=True)
    (folder / "gguf-py" / "gguf" / "__init__.py").write_text(_PACKAGE)
    script = folder / "convert_hf_to_gguf.py"
    script.write_text(_SCRIPT)
    return script


def real_checkout() -> Path | None:
    """Return llama.cpp's checkout that FASTSFT_GGUF_CONVERTER names, if any."""
    given = os.environ.get("FASTSFT_GGUF_CONVERTER")
    path = Path(given) if given else None
    return path.parent if path and path.is_file() else path


def with_known_tokenizers(folder: Path, checkout: Path) -> Path:
    """Write a script that runs the converter of a checkout with any byte-level tokenizer.

    The converter knows published tokenizers by a hash, and refuses all others.
    """
    folder.mkdir()
    for name in ("conversion", "gguf-py"):
        (folder / name).symlink_to(checkout / name)
    script = folder / "convert_hf_to_gguf.py"
    script.write_text(
        "import runpy, sys\n"
        "from pathlib import Path\n"
        "here = Path(__file__).parent\n"
        "sys.path[:0] = [str(here), str(here / 'gguf-py')]\n"
        "from conversion.base import TextModel\n"
        "TextModel.get_vocab_base_pre = lambda self, tokenizer: 'qwen2'\n"
        f"runpy.run_path({str(checkout / 'convert_hf_to_gguf.py')!r}, run_name='__main__')\n"
    )
    return script
