"""Python code in a model's directory is never imported (docs/spec/reliability.md, row S6)."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from canary import write_code
from e2e.command_line import TRAINER, start
from fastsft import _C
from fastsft.model.causal_lm import CausalLM, model_config
from fastsft.program.checked_names import check_directory
from fastsft.tokenizer import Tokenizer
from fastsft.train import train

AUTO = {
    "AutoConfig": "evil.Config",
    "AutoModelForCausalLM": "evil.Model",
    "AutoTokenizer": ["evil.Model", None],
}
ELSEWHERE = {name: f"someone/else--{target}" for name, target in AUTO.items() if isinstance(target, str)}
NAMES = (
    "evil.py",
    "config.py",
    "configuration_llama.py",
    "modeling_llama.py",
    "tokenization_llama.py",
    "json.py",
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory full of code that would leave `tmp_path`/trace."""
    folder = tmp_path / "model"
    shutil.copytree(TRAINER / "model_untied", folder)
    for name in NAMES:
        write_code(folder / name, tmp_path / "trace")
    return folder


def edit(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **changes}))


def test_the_code_would_leave_a_trace(tmp_path: Path, model: Path) -> None:
    """The tests below could fail."""
    exec(compile((model / "evil.py").read_text(), "evil.py", "exec"), {})
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize("auto_map", [AUTO, ELSEWHERE], ids=["here", "elsewhere"])
def test_auto_map_of_a_native_family(tmp_path: Path, model: Path, auto_map: dict[str, Any]) -> None:
    edit(model / "config.json", auto_map=auto_map, trust_remote_code=True)
    assert CausalLM.from_pretrained(str(model)).config.model_type == "llama"
    _C.Engine((model / "config.json").read_text())
    assert not (tmp_path / "trace").exists()


def test_auto_map_of_a_tokenizer(tmp_path: Path, model: Path) -> None:
    edit(model / "tokenizer_config.json", auto_map=AUTO, tokenizer_class="evil.Model", trust_remote_code=True)
    tokenizer = Tokenizer.from_pretrained(str(model))
    assert tokenizer.vocab_size > 1000
    assert not (tmp_path / "trace").exists()


def test_a_family_that_only_its_own_code_knows(tmp_path: Path, model: Path) -> None:
    edit(model / "config.json", model_type="evil", auto_map=AUTO)
    config = model_config(str(model))
    with pytest.raises(ValueError, match='unknown model family "evil"'):
        _C.Engine(config.to_json_string())
    assert not (tmp_path / "trace").exists()


FLAGS = ("config.json", "tokenizer_config.json", "generation_config.json")


def test_a_whole_run(tmp_path: Path, model: Path) -> None:
    for name in FLAGS:
        edit(model / name, auto_map=AUTO)
    flags = json.loads((TRAINER / "h_resume.json").read_text())["flags"]
    flags |= {"model_name_or_path": str(model), "max_steps": 1}
    start(flags, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert not (tmp_path / "trace").exists() and "evil" not in sys.modules
    assert not list((tmp_path / "out").rglob("*.py"))


@pytest.mark.parametrize(
    ("file", "auto_map", "name"),
    [
        ("config.json", {"AutoModelForCausalLM": "evil.Model"}, "AutoModelForCausalLM 'evil.Model'"),
        ("config.json", {"AutoConfig": "evil.Config"}, "AutoConfig 'evil.Config'"),
        ("config.json", {"AutoModel": "evil.Model"}, None),
        ("tokenizer_config.json", {"AutoTokenizer": ["evil.T", None]}, r"AutoTokenizer \['evil.T', None\]"),
        ("tokenizer_config.json", ["evil.T", None], r"AutoTokenizer \['evil.T', None\]"),
        ("generation_config.json", AUTO, None),
    ],
)
def test_a_run_that_trusts(file: str, auto_map: Any, name: str | None, tmp_path: Path, model: Path) -> None:
    """transformers would take the class of the directory, where it takes one of that kind at all."""
    edit(model / file, auto_map=auto_map)
    given = CausalLM.from_pretrained(str(model))
    check_directory(given, trusts_code=False)
    if name is None:
        check_directory(given, trusts_code=True)
    else:
        message = rf"--trust_remote_code True: .*{file}: auto_map has {name}.*leave the flag out"
        with pytest.raises(ValueError, match=message):
            check_directory(given, trusts_code=True)
    assert not (tmp_path / "trace").exists()
