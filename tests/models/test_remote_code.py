"""Python code in a model's directory is never imported (reliability.md, S6)."""

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
from fastsft.model import CausalLM, model_config
from fastsft.tokenizer import Tokenizer

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


def test_a_whole_run_that_trusts(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        edit(model / name, auto_map=AUTO)
    flags = json.loads((TRAINER / "h_resume.json").read_text())["flags"]
    flags |= {"model_name_or_path": str(model), "trust_remote_code": True, "max_steps": 1}
    start(flags, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert not (tmp_path / "trace").exists() and "evil" not in sys.modules
    assert not list((tmp_path / "out").rglob("*.py"))
