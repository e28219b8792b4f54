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
from fastsft.cli import main as cli
from fastsft.model.causal_lm import CausalLM
from fastsft.model.model_config import model_config
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


MODELING = """
from transformers import GPT2LMHeadModel
from .configuration_own import OwnConfig
open({trace!r}, "a").close()
class OwnForCausalLM(GPT2LMHeadModel):
    config_class = OwnConfig
"""
CONFIGURATION = """
from transformers import GPT2Config
class OwnConfig(GPT2Config):
    model_type = "own"
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose class is a file of its directory; modules are copied to a folder of the test."""
    from recorded_models import write_recorded

    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = write_recorded("gpt2", tmp_path / "own")
    (folder / "modeling_own.py").write_text(MODELING.format(trace=str(tmp_path / "trace")))
    (folder / "configuration_own.py").write_text(CONFIGURATION)
    classes = {
        "AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
    }  # fmt: skip
    edit(folder / "config.json", model_type="own", auto_map=classes, architectures=["OwnForCausalLM"])
    return folder


def flags_of(model: Path, tmp_path: Path) -> dict[str, Any]:
    return {
        "model_name_or_path": str(model), "data_path": str(TRAINER / "data/first48.json"),
        "output_dir": str(tmp_path / "out"), "use_cpu": True, "max_steps": 1, "report_to": "none",
        "per_device_train_batch_size": 2, "model_max_length": 256,
    }  # fmt: skip


def test_code_that_is_not_trusted(tmp_path: Path, own: Path) -> None:
    with pytest.raises(ValueError, match=r"code of the directory .*which is not run.*--trust_remote_code"):
        train(**flags_of(own, tmp_path))
    assert not (tmp_path / "trace").exists()


def test_trusted_code_is_run_and_saved(tmp_path: Path, own: Path, capsys: Any) -> None:
    from transformers import AutoModelForCausalLM

    train(**flags_of(own, tmp_path), trust_remote_code=True)
    assert (tmp_path / "trace").exists()
    assert "OwnForCausalLM" in capsys.readouterr().out
    for folder in (tmp_path / "out", *(tmp_path / "out").glob("checkpoint-*")):
        assert (folder / "modeling_own.py").read_text() == (own / "modeling_own.py").read_text()
        assert (folder / "configuration_own.py").exists()
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert type(opened).__name__ == "OwnForCausalLM"


@pytest.mark.parametrize("trusted", [False, True])
def test_commands_run_trusted_code(tmp_path: Path, own: Path, trusted: bool, capsys: Any) -> None:
    half, word = tmp_path / "half", ["--trust_remote_code"] if trusted else []
    commands = (["plan", "--model", str(own)], ["verify", str(own)], ["convert", str(own), str(half)],
                ["chat", str(own), "--message", "Hi", "--max_new_tokens", "2"])  # fmt: skip
    for command in commands:
        assert cli.main([*command, *word]) == (0 if trusted else 1), command
        said = capsys.readouterr()
        assert trusted or "--trust_remote_code" in said.out + said.err
    assert (tmp_path / "trace").exists() == trusted == half.exists()
    assert not trusted or (half / "modeling_own.py").read_text() == (own / "modeling_own.py").read_text()


def test_trusted_code_elsewhere_is_refused(tmp_path: Path, own: Path) -> None:
    edit(own / "config.json", auto_map={"AutoModelForCausalLM": "someone/else--modeling_own.OwnForCausalLM"})
    with pytest.raises(ValueError, match="expected a module of this directory and its class"):
        train(**flags_of(own, tmp_path), trust_remote_code=True)
    with pytest.raises(ValueError, match="native engine does not run"):
        edit(own / "config.json", model_type="llama")
        train(**flags_of(own, tmp_path), trust_remote_code=True, engine="native")
