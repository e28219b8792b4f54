"""No program of fastsft imports a file of the working directory, of the model's directory or of the data's.

One directory is all three, and holds a module of every name that a run imports; each
leaves a mark when it runs.
What Python imports before the first line of fastsft is out of reach with `python -m` (docs/security.md).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fastsft
from fastsft.runtime.search_path import child_environment, python_command
from fastsft.runtime.worker import isolated_command, isolated_environment, package_folder
from launched_runs import FLAGS

OWN = str(Path(fastsft.__file__).parents[1])
TRAIN = [
    "--model_name_or_path", ".", "--data_path", "data.json", "--output_dir", "../out", "--max_steps", "1",
    "--model_max_length", "128", "--per_device_train_batch_size", "2", "--data_cache", "none",
    "--plot_loss", "False", "--use_cpu", "True", "--save_strategy", "no",
]  # fmt: skip
# Optional packages, and what only some paths import.
MORE = ("pyarrow", "zstandard", "matplotlib", "jinja2", "markupsafe", "yaml", "tokenizers", "secrets",
        "resource", "struct", "tensorboard", "wandb", "mlflow", "numpy", "torch", "tqdm", "safetensors",
        "runpy", "select", "subprocess", "json", "huggingface_hub", "readline", "pickle")  # fmt: skip
_NAMES = "import sys; {}; print(*(n for n in sys.modules if '.' not in n))"


def _modules(code: str, *words: str, directory: Path) -> set[str]:
    done = subprocess.run(
        [sys.executable, *words, "-c", _NAMES.format(code)], cwd=directory, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": OWN}, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory; marks go to `marks` next to it."""
    folder = tmp_path_factory.mktemp("planted")
    before = _modules("import runpy, importlib.util, contextlib, pkgutil", directory=folder)
    imported = _modules(
        "import fastsft.train, fastsft.cli.main, fastsft.doctor.examination, fastsft.notebook.launch, "
        "fastsft.inspection.inspect, torch.distributed.run, tokenizers, pyarrow.parquet, zstandard, "
        "jinja2.sandbox",
        directory=folder,
    )
    model = Path(shutil.copytree(FLAGS["model_name_or_path"], folder / "model"))
    (model / "data.json").write_bytes(Path(FLAGS["data_path"]).read_bytes())
    template = (
        "{% for m in messages %}{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
        "{% if add_generation_prompt %}assistant\n{% endif %}"
    )
    (model / "chat_template.jinja").write_text(template)
    for name in {*imported, *MORE} - before - {*sys.builtin_module_names, "fastsft", "__main__"}:
        mark = folder / "marks"
        (model / f"{name}.py").write_text(
            f"open({str(mark)!r}, 'a').write({name!r} + chr(10))\nraise SystemExit(97)\n"
        )
    for name in ("sitecustomize", "usercustomize"):  # Python looks for them wherever its path leads
        (model / f"{name}.py").write_text(f"open({str(folder / 'marks')!r}, 'a').write({name!r} + chr(10))\n")
    (model / "planted.pth").write_text(f"import os; open({str(folder / 'marks')!r}, 'a').write('pth')\n")
    return model


def run(planted: Path, *words: str, **variables: str) -> str:
    """The command in the directory; it does its work, and no mark is there."""
    done = subprocess.run(
        [sys.executable, *words], cwd=planted, capture_output=True, text=True, timeout=900,
        env={**os.environ, "PYTHONPATH": OWN, "OMP_NUM_THREADS": "1", **variables},
    )  # fmt: skip
    marks = planted.parent / "marks"
    assert not marks.exists(), (marks.read_text(), done.stderr[-2000:])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def test_the_plants_work(planted: Path) -> None:
    """Without care they would run: Python itself looks into the directory."""
    done = subprocess.run([sys.executable, "-m", "secrets"], cwd=planted, capture_output=True)
    marks = planted.parent / "marks"
    assert done.returncode == 97 and marks.read_text() == "secrets\n"
    marks.unlink()


@pytest.mark.parametrize("path", [OWN, f":{OWN}", f"{OWN}:"])
def test_inspect_with_the_models_own_template(path: str, planted: Path, tmp_path: Path) -> None:
    """Also with an empty entry in PYTHONPATH, which is the working directory.

    There Python itself imports sitecustomize before the first line of fastsft.
    """
    if path != OWN:
        planted = Path(shutil.copytree(planted, tmp_path / "planted" / "model"))
        for name in ("sitecustomize", "usercustomize"):
            (planted / f"{name}.py").unlink()
    words = [
        "--model",
        ".",
        "--data",
        "data.json",
        "--mask_policy",
        "spans",
        "--template",
        "model",
        "-n",
        "1",
    ]
    assert "data set" in run(planted, "-m", "fastsft.cli.main", "inspect", *words, PYTHONPATH=path)


def test_training(planted: Path) -> None:
    spans = ["--mask_policy", "spans", "--template", "model"]
    run(planted, "-m", "fastsft.train", *TRAIN, *spans)


def test_training_on_two_ranks(planted: Path) -> None:
    run(planted, "-m", "fastsft.train", *TRAIN, "--no_resume", "True", FASTSFT_NUM_PROCESSES="2")


def test_torchrun_with_a_safe_path(planted: Path) -> None:
    """Its ranks are started with `python -m`; a planted fastsft.py would be run instead of the program."""
    (planted / "fastsft.py").write_text(f"open({str(planted.parent / 'marks')!r}, 'a').write('fastsft')\n")
    try:
        words = ["-P", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        run(planted, *words, "-m", "fastsft.train", *TRAIN, "--no_resume", "True", PYTHONSAFEPATH="1")
    finally:
        (planted / "fastsft.py").unlink()


@pytest.mark.thorough
def test_doctor_on_two_ranks(planted: Path) -> None:
    words = ["doctor", "--skip", "disk_rate", *TRAIN]
    assert "2 ranks met" in run(planted, "-m", "fastsft.cli.main", *words, FASTSFT_NUM_PROCESSES="2")


def test_ranks_of_launch(planted: Path) -> None:
    flags = ", ".join(f"{name[2:]}={value!r}" for name, value in zip(TRAIN[::2], TRAIN[1::2], strict=True))
    start = f"import sys; sys.path[0] = {OWN!r}; import fastsft"
    code = f"{start}; fastsft.launch(no_resume=True, num_processes=1, {flags})"
    run(planted, "-c", code)


def test_a_command_of_ours_keeps_what_pythonpath_names(planted: Path, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("")
    code = (
        "import fastsft.runtime.search_path as s, sys; sys.argv[0] = '-m'; s.leave_working_directory(); "
        "import helper"
    )
    run(tmp_path_of(tmp_path), "-c", code, PYTHONPATH=f"{OWN}{os.pathsep}{tmp_path}")


def tmp_path_of(path: Path) -> Path:
    (path / "in").mkdir()
    return path / "in"


def test_a_script_of_the_user_finds_what_lies_next_to_it(tmp_path: Path) -> None:
    """Its own folder leads, as Python has it; the working directory is not on the path."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "beside.py").write_text("NAME = 'beside'")
    (tmp_path / "scripts" / "run.py").write_text("import sys, beside; print(beside.NAME, sys.path[0])")
    (tmp_path / "scripts" / "cwd").mkdir()
    code = "import fastsft; fastsft.launch([], script='../run.py', num_processes=1)"
    said = run(tmp_path / "scripts" / "cwd", "-c", code)
    assert f"beside {tmp_path / 'scripts'}" in said


def test_children_have_no_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}{OWN}{os.pathsep}/named{os.pathsep}")
    monkeypatch.chdir(tmp_path)
    assert child_environment()["PYTHONPATH"].split(os.pathsep) == [OWN, "/named"]
    assert python_command("a.b")[1:] == ["-P", "-m", "a.b"]
    assert "PYTHONPATH" not in isolated_environment()
    said = subprocess.run(
        [*isolated_command("fastsft", ("jinja2",))[:4], "-c", "import sys; print(sys.path)"],
        env=isolated_environment(), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert str(tmp_path) not in said and "'']" not in said and "site-packages" not in said


def test_a_package_is_never_found_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted_package.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *sys.path])
    monkeypatch.setenv("PYTHONPATH", OWN)
    with pytest.raises(ValueError, match="the package planted_package is not installed"):
        package_folder("planted_package")
    assert package_folder("jinja2") not in ("", str(tmp_path))
