"""Commands take names of hub models, the cache and offline mode, as training does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from family_models import write_family
from fastsft.cli import main as cli
from fastsft.model.model_config import config_directory
from fastsft.runtime.hub import unreached
from fastsft.runtime.hub_models import TOKENIZER_FILES, snapshot
from fastsft.sources.data_files import data_files
from fastsft.train import train
from golden_text import conversation_file
from local_hub import LocalHub, local_hub

NAME = "owner/small-qwen"
DATA = str(conversation_file("dummy_conversation"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("hub") / "model", "qwen2")


@pytest.fixture
def hub(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A hub with the model; the working directory is empty."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with local_hub() as hub:
        hub.add(NAME, {path.name: path.read_bytes() for path in model.iterdir()})
        hub.use(monkeypatch, tmp_path / "cache")
        yield hub


def weights_asked(hub: LocalHub) -> bool:
    return any(path.endswith(".safetensors") for path in hub.asked)


def test_inspect_reads_the_tokenizer_alone(hub: LocalHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "--model", NAME, "--data", DATA, "-n", "1"]) == 0
    assert "records" in capsys.readouterr().out and not weights_asked(hub)


def test_every_command_takes_the_name(hub: LocalHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chat", NAME, "--message", "Hello", "--max_new_tokens", "2"]) == 0
    assert weights_asked(hub)
    assert cli.main(["verify", NAME]) == 0
    assert cli.main(["verify", NAME, "--against", NAME]) == 0
    assert cli.main(["convert", NAME, "halved", "--dtype", "bfloat16"]) == 0
    assert Path("halved/model.safetensors").is_file()
    assert cli.main(["plan", "--model", NAME, "--memory", "8GiB"]) == 0
    assert "Traceback" not in "".join(capsys.readouterr())


def test_a_modelfile_is_written_here(hub: LocalHub, capsys: pytest.CaptureFixture[str]) -> None:
    """Not into the cache, whose files other programs share."""
    assert cli.main(["export", "ollama", NAME]) == 0
    text = Path("Modelfile").read_text()
    folder = Path(text.splitlines()[0].removeprefix("FROM "))
    assert (folder / "model.safetensors").is_file() and not (folder / "Modelfile").exists()
    assert "written: Modelfile" in capsys.readouterr().out


def test_an_adapter_of_the_hub(
    hub: LocalHub, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train({
        "model_name_or_path": str(model), "data_path": DATA, "output_dir": str(tmp_path / "out"),
        "lora": True, "max_steps": 1, "use_cpu": True,
        "report_to": "none", "data_cache": "none", "max_dropped": 1.0,
        "model_max_length": 96,
    })  # fmt: skip
    names = ("adapter_config.json", "adapter_model.safetensors")
    hub.add("owner/adapter", {name: (tmp_path / "out" / name).read_bytes() for name in names})
    assert cli.main(["merge", "owner/adapter", "merged", "--base-model-path", NAME]) == 0
    assert Path("merged/model.safetensors").is_file()
    words = [
        "chat",
        "owner/adapter",
        "--base-model-path",
        NAME,
        "--message",
        "Hello",
        "--max_new_tokens",
        "2",
    ]
    assert cli.main(words) == 0


def offline(hub: LocalHub, tmp_path: Path, *command: str) -> tuple[int, str]:
    """The status and the errors of a command with HF_HUB_OFFLINE."""
    variables = {**os.environ, **hub.environment(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-m", "fastsft", *command]
    done = subprocess.run(words, env=variables, capture_output=True, text=True)
    return done.returncode, " ".join(done.stderr.split())


def test_the_cache_is_enough(hub: LocalHub, tmp_path: Path) -> None:
    """With HF_HUB_OFFLINE nothing is asked, and an error names that variable."""
    assert cli.main(["verify", NAME]) == 0
    asked = len(hub.asked)
    assert offline(hub, tmp_path, "verify", NAME)[0] == 0
    status, error = offline(hub, tmp_path, "verify", "owner/other")
    assert status == 2 and "HF_HUB_OFFLINE is set" in error and len(hub.asked) == asked


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("xet: broken"), ("the download broke off", "the same command goes on")),
        (OSError(28, "no space"), ("the hub's cache cannot be used", "make room, or set HF_HOME")),
        (
            NotADirectoryError(20, "no directory"),
            ("cannot be used", "set HF_HOME to a directory that can be"),
        ),
    ],
)
def test_a_download_that_breaks_off(
    error: Exception,
    said: tuple[str, ...],
    hub: LocalHub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    for command in (["verify", NAME], ["convert", NAME, "out"], ["plan", "--model", NAME]):
        assert cli.main(command) in (1, 2)
        words = capsys.readouterr().err
        assert all(part in words for part in said)


def test_the_variable_that_is_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub is offline by that of transformers, too."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    assert unreached().startswith("TRANSFORMERS_OFFLINE is set, so that the hub is not asked")
    monkeypatch.setenv("HF_HUB_OFFLINE", "ON")
    assert unreached().startswith("HF_HUB_OFFLINE is set")


def test_a_part_in_the_cache_is_not_enough(hub: LocalHub, tmp_path: Path) -> None:
    """`plan` has downloaded config.json alone."""
    assert cli.main(["plan", "--model", NAME, "--memory", "8GiB"]) == 0
    for command in (["verify", NAME], ["inspect", "--model", NAME, "--data", DATA]):
        status, error = offline(hub, tmp_path, *command)
        assert status in (1, 2) and f"hf download {NAME}" in error
        assert "HF_HUB_OFFLINE is set, so that the hub is not asked" in error


def test_named_templates_and_code_are_downloaded(hub: LocalHub) -> None:
    templates = {"additional_chat_templates/tool_use.jinja": b"{{ tools }}", "onnx/config.json": b"{}"}
    hub.add("owner/tools", {**templates, "modeling_own.py": b"#", "config.json": b"{}"})
    folder = snapshot("owner/tools", None, TOKENIZER_FILES)
    assert (folder / "additional_chat_templates" / "tool_use.jinja").is_file()
    assert not (folder / "onnx").exists() and not (folder / "modeling_own.py").exists()
    assert (config_directory("owner/tools", has_code=True) / "modeling_own.py").is_file()


def test_an_unknown_user_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["verify", "~nosuchuser/x"], ["recipes", "qwen2.5-0.5b-lora", "~nosuchuser/x.yaml"]):
        assert cli.main(command) in (1, 2)
        assert "no user nosuchuser" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["chat", "verify", "convert", "export ollama", "inspect", "merge"])
def test_mistakes_say_where_was_looked(
    command: str, hub: LocalHub, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"inspect": ["--data", DATA], "convert": ["out"], "merge": ["out"]}.get(command, [])
    place = ["--model"] if command == "inspect" else []
    for name, message in (
        (
            "owner/typo",
            f"owner/typo: no such directory ({Path('owner/typo').absolute()}), and not found on the hub",
        ),
        (f"hf://{NAME}", f"write {NAME}"),
        (f"huggingface.co/{NAME}", f"write {NAME}"),
        (f"https://huggingface.co/{NAME}/tree/main", f"write {NAME}"),
        ("hf://datasets/a/b", "expected a model, got the data set"),
    ):
        assert cli.main([*command.split(), *place, name, *more]) in (1, 2)
        error = capsys.readouterr().err.replace("\n", " ")
        assert message in " ".join(error.split()), error
    assert not Path("out").exists()


def test_a_directory_goes_before_the_hub(hub: LocalHub, model: Path) -> None:
    shutil.copytree(model, NAME)
    assert cli.main(["verify", NAME]) == 0
    assert cli.main(["inspect", "--model", NAME, "--data", DATA, "-n", "1"]) == 0
    assert hub.asked == []


def test_help_and_version_are_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"fastsft {cli.version()}\n"
    for words, part in (
        (["help"], "commands:"),
        (["help", "plan"], "usage: fastsft plan"),
        (["help", "help"], "commands:"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert ended.value.code == 0 and part in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main(["help", "trian"])
    assert ended.value.code == 2 and "the nearest is train" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("tatsu-lab/alpaca", "; a data set of the hub is hf://datasets/tatsu-lab/alpaca"),
        ("chats.jsonl", "; the nearest there is chats.json"),
        ("no/such/folder/a.json", "; the nearest folder there is {here}"),
        ("x.json", "; {here} has chats.json, data"),
        ("https://huggingface.co/datasets/a/b", "; a data set of the hub is hf://datasets/a/b"),
        ("chats.json:2x", "; a weight is a number above 0, as in chats.json:0.5, and not 2x"),
        ("$D/a.json", "; $D is not replaced here: use double quotes in a shell, and its value in a file"),
        (r"C:\x\a.json", "; a path of Windows: on Linux write it with /, in WSL as /mnt/c/x/a.json"),
        ("Chats.json", "; the nearest there is chats.json"), ("data/q.json", "; {here}/data has chats.json"),
        ("data/chat.json", "; the nearest there is data/chats.json"),
    ],
)  # fmt: skip
def test_missing_data_names_what_is_near(
    given: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    for folder in (tmp_path, tmp_path / "data"):
        (folder / "chats.json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as refused:
        data_files(given)
    assert (
        str(refused.value)
        == f"{given} is not a file, and no file's name matches it{hint.format(here=tmp_path)}"
    )
