"""Links, FIFOs and files of others in the directory of token caches; a mapped cache that is cut."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fastsft
from fastsft import _C, data
from fastsft.data import digests as content_digest
from fastsft.data.digests import file_digest
from fastsft.data.token_cache import only_writer, remove_forgotten
from fastsft.ranks.output_directory import file_system_of
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, human_gpt
from planted import state

FOLDER = GOLDEN / "tokenizers" / "llama2_legacy"
KEY = "0123456789abcdef" * 4


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    records = [{"id": f"r{i}", "conversations": human_gpt(f"Hi {i}", "Ho " * (i % 9))} for i in range(300)]
    path.write_text("\n".join(map(json.dumps, records)))
    old = time.time() - 100
    os.utime(path, (old, old))
    return path


def load(path: Path, cache: Path) -> Any:
    tokenizer = Tokenizer.from_pretrained(FOLDER, model_max_length=64)
    arguments = SimpleNamespace(
        data_path=str(path), eval_data_path=None, lazy_preprocess=False, data_cache=str(cache)
    )
    return data.make_supervised_data_module(tokenizer, arguments)["train_dataset"]


@pytest.mark.parametrize("kind", ["fifo", "link", "hard link", "directory"])
def test_what_is_no_lock_is_left_alone(tmp_path: Path, kind: str, capsys: Any) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "victim").write_text("mine")
    lock = tmp_path / f"{KEY}.lock"
    if kind == "fifo":
        os.mkfifo(lock)
    elif kind == "directory":
        lock.mkdir()
    elif kind == "link":
        lock.symlink_to(keep / "victim")
    else:
        os.link(keep / "victim", lock)
    before = state(keep)
    with only_writer(tmp_path, KEY):
        pass
    assert os.path.lexists(lock) and state(keep) == before
    assert "labelled without a lock" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["file", "link", "fifo"])
def test_digests_of_another_kind(source: Path, tmp_path: Path, kind: str) -> None:
    """No hash is remembered, none is removed, and the rows are the same."""
    cache, keep = tmp_path / "cache", tmp_path / "keep"
    cache.mkdir()
    keep.mkdir()
    old = keep / f"{KEY[:32]}.json"
    old.write_text("mine")
    os.utime(old, (0, 0))
    if kind == "file":
        (cache / "digests").write_text("mine")
    elif kind == "link":
        (cache / "digests").symlink_to(keep)
    else:
        os.mkfifo(cache / "digests")
    before = state(keep)
    first = load(source, cache).native.checksum()
    remove_forgotten(cache)
    assert load(source, cache).native.checksum() == first
    assert state(keep) == before and len(list(cache.glob("*.tokens"))) == 1


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", '{"identity": "x"}', "x" * (1 << 20)])
@pytest.mark.parametrize("through", ["file", "fifo", "/dev/zero"])
def test_hostile_entries_count_as_none(source: Path, tmp_path: Path, text: str, through: str) -> None:
    index = tmp_path / "digests"
    wanted = file_digest(source)
    assert file_digest(source, index) == wanted
    for entry in index.glob("*.json"):
        entry.unlink()
        if through == "file":
            entry.write_text(text)
        elif through == "fifo":
            os.mkfifo(entry)
        else:
            entry.symlink_to(through)
    assert file_digest(source, index) == wanted


def test_links_among_the_caches_are_not_followed(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "x").write_text("mine")
    os.utime(keep / "x", (0, 0))
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in (f"{KEY}.tokens", f"{KEY}.lock", f"{_C.cache_temporary_prefix}0123456789abcdef-0"):
        (cache / name).symlink_to(keep / "x")
    before = state(keep)
    remove_forgotten(cache)
    assert state(keep) == before


def write_through_a_mapping(path: Path) -> None:
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[20] ^= 1
        mapped.flush()


def test_edits_through_a_mapping_are_seen(source: Path, tmp_path: Path) -> None:
    index = tmp_path / "digests"
    before = file_digest(source, index)
    write_through_a_mapping(source)
    assert file_digest(source, index) != before


def test_edits_through_a_mapping_in_a_memory_file_system(tmp_path: Path) -> None:
    """Where they change no time: the file is read again."""
    if not os.path.isdir("/dev/shm") or file_system_of(Path("/dev/shm")) != "tmpfs":
        pytest.skip("no tmpfs at /dev/shm")
    path = Path(f"/dev/shm/fastsft-mapped-{os.getpid()}")
    try:
        path.write_bytes(bytes(100))
        os.utime(path, (1, 1))
        index = tmp_path / "digests"
        time.sleep(content_digest._UNSAFE_SECONDS + 0.2)
        before = file_digest(path, index)
        write_through_a_mapping(path)
        assert path.stat().st_mtime == 1
        assert file_digest(path, index) != before
    finally:
        path.unlink()


CUT = """
import os, sys
from fastsft import _C
cache = _C.open_token_cache(sys.argv[1], sys.argv[2], False)
print(len(cache.dataset), flush=True)
os.truncate(sys.argv[1], int(sys.argv[3]))
for row in range(len(cache.dataset)): cache.dataset.ids(row)
print("read", flush=True)
"""


@pytest.mark.parametrize("left", [0, 64])
def test_a_cut_cache_ends_the_run_with_a_line(source: Path, tmp_path: Path, left: int) -> None:
    cache = tmp_path / "cache"
    load(source, cache)
    (path,) = cache.glob("*.tokens")
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(path), path.stem, str(left)],
        env={**os.environ, "PYTHONPATH": str(Path(fastsft.__file__).parents[1])},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    # Of a small file the last page of what is left may still hold rows.
    if left == 0:
        assert done.returncode == 1, (done.returncode, done.stderr)
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"error: {path}: was cut short while it was in use")
    else:
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr


def test_another_bus_error_stays_one(tmp_path: Path) -> None:
    """A mapping that is not ours: the kernel's signal ends the process, as without fastsft."""
    path = tmp_path / "x"
    path.write_bytes(bytes(8192))
    program = (
        "import mmap, os, sys\nfrom fastsft import _C\n"
        "_C.read_manifest  # loaded\nfile = open(sys.argv[1], 'r+b')\nmapped = mmap.mmap(file.fileno(), 0)\n"
        "os.truncate(sys.argv[1], 0)\nmapped[5000]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "PYTHONPATH": str(Path(fastsft.__file__).parents[1])},
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == -7
