"""Names and places that a run is given: what can be used is, for the rest a line names it; nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from cli.test_planted_files import TRAINER, commands, training
from forked_commands import run_commands

MODEL = TRAINER / "model_untied"
BYTES = os.fsdecode(b"name-\xff\xfe")
USED = ["sub/../out", "out/", "out//", "./out", "by_link", "out\nof two lines", "out\x1b[31m"]
REFUSED = {
    "a_file": "got: a file",
    "a_file/out": "Not a directory",
    "dangling": "expected a directory to write into",
    "fifo": "expected a directory to write into",
    "/dev/null": "expected a directory to write into",
    "/proc/self/out": "expected a directory to write into",
    "loop/out": "symbolic links",
    "o" * 300: "File name too long",
    "/".join(["d" * 200] * 25): "File name too long",
    BYTES: "--output_dir: expected a path in UTF-8, got 'name-\\udcff\\udcfe'; rename what is not",
}


def places(folder: Path) -> Path:
    folder.mkdir()
    (folder / "a_file").write_text("mine")
    for name in ("sub", "keep"):
        (folder / name).mkdir()
    (folder / "keep" / "thesis").write_text("mine")
    for name, target in (("by_link", "keep"), ("dangling", "gone"), ("loop", "loop")):
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "fifo")
    return folder


def test_output_directories(tmp_path: Path) -> None:
    orders, folders = [], []
    for number, name in enumerate([*USED, *REFUSED]):
        folders.append(places(tmp_path / str(number)))
        orders.append(([*training(MODEL, Path("x")), "--output_dir", name], folders[-1]))
    done = run_commands([(["train", *words], folder) for words, folder in orders])
    for name, folder, (status, said) in zip([*USED, *REFUSED], folders, done, strict=True):
        assert status == (0 if name in USED else 1) and "Traceback" not in said, (name, status, said)
        assert REFUSED.get(name, "") in said and "\x1b" not in said, (name, said)
        assert (folder / "a_file").read_text() == (folder / "keep" / "thesis").read_text() == "mine"
        assert (folder / "fifo").is_fifo() and os.readlink(folder / "by_link") == "keep"
        assert name not in USED or (folder / name / "model.safetensors").is_file()


def test_a_locale_that_does_not_read_utf8_is_named(tmp_path: Path) -> None:
    """It is at fault, not the name."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code = "import sys; from fastsft.runtime.regular_files import check_name; check_name(sys.argv[1], '--x')"
    for name, expected in (
        (
            "\u00e9",
            r"--x: expected a locale of UTF-8 for this path, got ascii and '\udcc3\udca9'; set LC_ALL=",
        ),
        (BYTES, r"--x: expected a path in UTF-8, got 'name-\udcff\udcfe'; rename what is not"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, name], env={**os.environ, **plain}, capture_output=True, text=True
        )
        assert done.returncode == 1 and expected in done.stderr, done.stderr


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """The native core takes none; also of a file in a model's folder of templates."""
    model = Path(shutil.copytree(MODEL, tmp_path / BYTES))
    data = shutil.copy(TRAINER / "data" / "first50.json", tmp_path / f"{BYTES}.json")
    other = Path(shutil.copytree(MODEL, tmp_path / "other"))
    (other / "additional_chat_templates").mkdir()
    (other / "additional_chat_templates" / f"{BYTES}.jinja").write_text("x")
    out = tmp_path / "out"
    orders = {
        "--model_name_or_path": ["train", *training(model, out)],
        "a file of data": ["train", *training(MODEL, out, data_path=data)],
        "--data_cache": ["train", *training(MODEL, out, data_cache=tmp_path / BYTES / "cache")],
        "--resume_from_checkpoint": ["train", *training(MODEL, out, resume_from_checkpoint=model)],
        "a file of a model": ["train", *training(other, out)],
        "--model_name_or_path ": commands(model, out)["doctor"],
        "--model": commands(model, out)["inspect"],
        "--model_name_or_path   ": commands(model, out)["plan"],
    }
    done = run_commands([(words, tmp_path) for words in orders.values()])
    for (name, words), (status, said) in zip(orders.items(), done, strict=True):
        assert status in (1, 2) and "Traceback" not in said, (words[0], said)
        assert name.strip(" :") in said and "in UTF-8, got" in " ".join(said.split()), (name, said)
