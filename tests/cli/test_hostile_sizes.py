"""Files of a gigabyte, archives, and JSON that is too deep or too large: a line; 2 GiB and 30 s each."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from cli.test_planted_files import TRAINER, training
from forked_commands import run_commands

MODEL = TRAINER / "model_untied"
GIB = 1 << 30
DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
OF_MODEL = (
    "tokenizer.json", "tokenizer.model", "config.json", "generation_config.json", "tokenizer_config.json",
    "model.safetensors.index.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
)  # fmt: skip
LEFT_OUT = "generation_config.json"  # with a warning: docs/security.md


def model_with(folder: Path, name: str, content: bytes, size: int = 0) -> Path:
    shutil.copytree(MODEL, folder)
    if name == "tokenizer.json":
        (folder / "tokenizer.model").unlink()
    with (folder / name).open("wb") as file:
        file.write(content)
        file.truncate(max(size, len(content)))
    return folder


def check(cases: dict[str, tuple[list[str], str]], folder: Path) -> None:
    """cases: the words of a command, and what it says before it leaves with status 1."""
    done = run_commands([(words, folder) for words, _ in cases.values()])
    for (name, (_, expected)), (status, said) in zip(cases.items(), done, strict=True):
        assert "Traceback" not in said and "bad_alloc" not in said, (name, said)
        left_out = name.endswith(LEFT_OUT)
        assert status == (0 if left_out else 1) and expected in said, (name, status, said[-1500:])
        assert not left_out or "not copied" in said


def test_files_of_a_model(tmp_path: Path) -> None:
    config = (MODEL / "config.json").read_bytes()
    edits: dict[str, Callable[[bytes], bytes]] = {
        "digits": lambda text: text.replace(b'"vocab_size": 32000', b'"vocab_size": ' + b"9" * 5000),
        "exponent": lambda text: text.replace(b'"vocab_size": 32000', b'"vocab_size": 1e999'),
        "nul": lambda text: text + b"\0" * 100,
        "nul inside": lambda text: text.replace(b'"llama"', b'"lla\0ma"'),
    }
    cases = {}
    for number, name in enumerate(OF_MODEL):
        for kind, content, size in (("large", b"", GIB), ("deep", DEEP, 0)):
            if kind == "deep" and not name.endswith(".json"):
                continue
            model = model_with(tmp_path / f"{kind}{number}", name, content, size)
            cases[f"{kind} {name}"] = (["train", *training(model, tmp_path / f"o{kind}{number}")], name)
    for kind, edit in edits.items():
        assert edit(config) != config
        model = model_with(tmp_path / kind, "config.json", edit(config))
        cases[kind] = (["train", *training(model, tmp_path / f"o-{kind}")], "config.json: ")
    check(cases, tmp_path)


def test_files_of_data(tmp_path: Path) -> None:
    """No member of an archive is unpacked, wherever its name leads."""
    inside = tmp_path / "in" / "side"
    inside.mkdir(parents=True)
    with tarfile.open(inside / "a.tar", "w") as archive:
        entry = tarfile.TarInfo("../../evil")
        entry.size = 4
        archive.addfile(entry, io.BytesIO(b"evil"))
    with zipfile.ZipFile(inside / "a.zip", "w") as packed:
        packed.writestr("../../evil", "evil")
    (inside / "tar.jsonl").write_bytes((inside / "a.tar").read_bytes())
    (inside / "zip.json").write_bytes((inside / "a.zip").read_bytes())
    (inside / "tar.json.gz").write_bytes(gzip.compress((inside / "a.tar").read_bytes()))
    with (inside / "line.jsonl").open("wb") as file:
        file.write(b'{"id":"')
        for _ in range(1024):
            file.write(b"a" * (1 << 20))
    with (inside / "zeros.jsonl").open("wb") as file:
        file.write(b'{"id":"')
        file.truncate(GIB)
    expected = {
        "a.tar": "not JSON at byte 0", "tar.jsonl": "not JSON at byte 0", "tar.json.gz": "not JSON at byte 0",
        "a.zip": "got a ZIP archive; unpack it first", "zip.json": "got a ZIP archive; unpack it first",
        "line.jsonl": "a record may have 67108864 (--max_record_bytes)",
        "zeros.jsonl": "a record may have 67108864 (--max_record_bytes)",
    }  # fmt: skip
    cases = {
        name: (["train", *training(MODEL, tmp_path / f"o-{name}", data_path=inside / name)], said)
        for name, said in expected.items()
    }
    try:
        check(cases, inside)
    finally:
        (inside / "line.jsonl").unlink()
    assert not list(tmp_path.rglob("evil")) and not (tmp_path.parent / "evil").exists()
