"""A checkpoint is absent, ignored, or complete: commit, damage, deletion, left-overs, rotation."""

import errno
import json
import random

import pytest

from denied_calls import RENAMEAT2, with_denied
from fastsft import _C

FILES = {"model.safetensors": bytes(range(256)) * 5, "state.json": b"{}\n", "empty.bin": b""}


def digest(name, content):
    return _C.FileDigest(name, len(content), _C.crc32c(content))


def commit(parent, step, files=FILES):
    directory = _C.AtomicDirectory(str(parent), str(step))
    for name, content in files.items():
        with open(f"{directory.path}/{name}", "wb") as file:
            file.write(content)
    manifest = _C.Manifest(step, 2, "00ff", [digest(name, content) for name, content in files.items()])
    return parent / f"checkpoint-{step}", directory.commit(f"checkpoint-{step}", manifest)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_commit_and_read_back(tmp_path):
    expected, path = commit(tmp_path, 30)
    assert path == str(expected)
    assert names(tmp_path) == ["checkpoint-30"]
    assert names(expected) == sorted([*FILES, "manifest.json"])
    manifest = _C.read_manifest(path)
    assert (manifest.step, manifest.world_size, manifest.layout_hash) == (30, 2, "00ff")
    assert [(file.name, file.size) for file in manifest.files] == [(n, len(c)) for n, c in FILES.items()]
    assert _C.verify_directory(path) == []


def test_nothing_is_visible_before_the_commit(tmp_path):
    directory = _C.AtomicDirectory(str(tmp_path), "7")
    (name,) = names(tmp_path)
    assert name.startswith(".fastsft-tmp-7-") and directory.path == str(tmp_path / name)
    assert _C.list_checkpoints(str(tmp_path)) == []
    del directory  # an abandoned save leaves nothing
    assert names(tmp_path) == []


def test_commit_replaces_an_older_one_of_the_same_step(tmp_path):
    commit(tmp_path, 3, {"old": b"1"})
    path, _ = commit(tmp_path, 3, {"new": b"2"})
    assert names(tmp_path) == ["checkpoint-3"]
    assert names(path) == ["manifest.json", "new"]
    assert _C.verify_directory(str(path)) == []


@pytest.mark.skipif(RENAMEAT2 is None, reason="the number of renameat2 is known for x86_64 and aarch64")
@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM])
def test_commit_replaces_where_names_cannot_be_exchanged(tmp_path, error):
    """Other file systems and kernels: the old one is renamed first."""
    commit(tmp_path, 3, {"old": b"1"})
    path, _ = with_denied(RENAMEAT2, error, lambda: commit(tmp_path, 3, {"new": b"2"}))
    assert names(tmp_path) == ["checkpoint-3"]
    assert names(path) == ["manifest.json", "new"]
    assert _C.verify_directory(str(path)) == []


@pytest.mark.skipif(RENAMEAT2 is None, reason="the number of renameat2 is known for x86_64 and aarch64")
def test_another_error_of_an_exchange_keeps_the_old_one(tmp_path):
    path, _ = commit(tmp_path, 3, {"old": b"1"})
    with pytest.raises(_C.FileError, match="Input/output error"):
        with_denied(RENAMEAT2, errno.EIO, lambda: commit(tmp_path, 3, {"new": b"2"}))
    assert names(path) == ["manifest.json", "old"]
    assert _C.verify_directory(str(path)) == []


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_missing_and_longer_and_shorter_files_are_named(tmp_path, name):
    path, _ = commit(tmp_path, 1)
    content = (path / name).read_bytes()
    damages = [content + b"x"] + [
        content[:cut] for cut in (0, 1, 7, 8, len(content) // 2, len(content) - 1) if cut < len(content)
    ]
    for damage in damages:
        if damage == content:
            continue
        (path / name).write_bytes(damage)
        problems = _C.verify_directory(str(path))
        assert len(problems) == 1 and name in problems[0]
    (path / name).unlink()
    problems = _C.verify_directory(str(path))
    assert len(problems) == 1 and name in problems[0]


def test_every_damaged_file_is_named(tmp_path):
    path, _ = commit(tmp_path, 1)
    (path / "state.json").write_bytes(b"{]\n")
    (path / "empty.bin").write_bytes(b"x")
    problems = _C.verify_directory(str(path))
    assert [problem.split(":")[0] for problem in problems] == ["state.json", "empty.bin"]


def test_any_flipped_bit_is_found(tmp_path):
    path, _ = commit(tmp_path, 1)
    generator = random.Random(0)
    targets = {
        name: (path / name).read_bytes() for name in ["model.safetensors", "state.json", "manifest.json"]
    }
    for _ in range(300):
        name = generator.choice(list(targets))
        content = bytearray(targets[name])
        content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        (path / name).write_bytes(content)
        assert _C.verify_directory(str(path)), name
        (path / name).write_bytes(targets[name])
    assert _C.verify_directory(str(path)) == []


def test_sizes_alone_do_not_read_the_content(tmp_path):
    path, _ = commit(tmp_path, 1)
    (path / "state.json").write_bytes(b"{]\n")
    assert _C.verify_directory(str(path), checksums=False) == []
    assert _C.verify_directory(str(path))


def test_unlisted_files(tmp_path):
    path, _ = commit(tmp_path, 1)
    (path / "notes.txt").write_text("mine")
    assert _C.verify_directory(str(path)) == []
    (path / "model-00001-of-00002.safetensors").write_bytes(b"")
    (problem,) = _C.verify_directory(str(path))
    assert "model-00001-of-00002.safetensors" in problem


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "not json", '{"format_version": 1}', '{"format_version": "x"}']
)
def test_what_is_no_manifest(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match="manifest"):
        _C.read_manifest(str(tmp_path))


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "a//x", "a/", "./x", "a\\x", "", "a/C:x"])
def test_manifest_names_cannot_leave_the_directory(tmp_path, name):
    path, _ = commit(tmp_path, 1)
    (path / "manifest.json").write_text(_C.Manifest(1, 1, "", [_C.FileDigest(name, 0, 0)]).json())
    (problem,) = _C.verify_directory(str(path))
    assert f'a folder of it, got "{name}"' in problem


def test_files_in_folders(tmp_path):
    directory = _C.AtomicDirectory(str(tmp_path), "1")
    for name in ("a/b/x", "a/y"):
        file = tmp_path / directory.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"1")
    files = [digest(name, b"1") for name in ("a/b/x", "a/y")]
    path = directory.commit("checkpoint-1", _C.Manifest(1, 1, "", files))
    assert _C.verify_directory(path) == []
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "y").write_bytes(b"1")
    (tmp_path / "checkpoint-1" / "a" / "y").unlink()
    (tmp_path / "checkpoint-1" / "a" / "y").symlink_to(outside / "y")
    (problem,) = _C.verify_directory(path)
    assert "a link that leaves the directory" in problem
    _C.delete_directory(path)
    assert names(tmp_path) == ["outside"] and names(outside) == ["y"]


def test_a_newer_format_is_refused(tmp_path):
    path, _ = commit(tmp_path, 1)
    text = json.loads((path / "manifest.json").read_text())
    text["format_version"] = 2
    (path / "manifest.json").write_text(json.dumps(text))
    with pytest.raises(ValueError, match="format version 2"):
        _C.read_manifest(str(path))


def test_leftovers(tmp_path):
    commit(tmp_path, 1)
    kept = _C.AtomicDirectory(str(tmp_path), "2")
    suffix = "-0123456789abcdef"
    trash = tmp_path / f".fastsft-trash-checkpoint-9{suffix}"
    (tmp_path / "checkpoint-1").rename(trash)
    foreign = tmp_path / f".fastsft-tmp-8{suffix}"
    foreign.mkdir()
    (foreign / "precious").write_text("not ours")
    (tmp_path / ".fastsft-tmp-x").mkdir()
    empty = tmp_path / f".fastsft-tmp-5{suffix}"
    empty.mkdir()
    half = tmp_path / f".fastsft-tmp-model.safetensors{suffix}"
    half.write_bytes(b"half")
    removed = _C.remove_leftovers(str(tmp_path))
    assert sorted(removed) == sorted([trash.name, empty.name, half.name, kept.path.rsplit("/", 1)[1]])
    assert names(tmp_path) == sorted([foreign.name, ".fastsft-tmp-x"])


def test_list_is_by_number(tmp_path):
    for name in [
        "checkpoint-9",
        "checkpoint-10",
        "checkpoint-100",
        "checkpoint-x",
        "checkpoint-",
        "checkpoint--1",
        "other",
    ]:
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-5").write_text("a file")
    assert _C.list_checkpoints(str(tmp_path)) == ["checkpoint-9", "checkpoint-10", "checkpoint-100"]


@pytest.mark.parametrize(
    ("limit", "best", "left"),
    [
        (0, "", [1, 2, 3, 4]),
        (-1, "", [1, 2, 3, 4]),
        (4, "", [1, 2, 3, 4]),
        (2, "", [3, 4]),
        (1, "", [4]),
        (2, "checkpoint-1", [1, 4]),
        (1, "checkpoint-2", [2, 4]),
        (1, "checkpoint-4", [4]),
    ],
)
def test_rotation(tmp_path, limit, best, left):
    for step in [1, 2, 3, 4]:
        commit(tmp_path, step)
    _C.rotate_checkpoints(str(tmp_path), limit, [best])
    assert _C.list_checkpoints(str(tmp_path)) == [f"checkpoint-{step}" for step in left]
    assert names(tmp_path) == [f"checkpoint-{step}" for step in left]


def test_rotation_neither_counts_nor_touches_torn_ones(tmp_path):
    for step in [10, 20, 30]:
        commit(tmp_path, step)
    for step in [5, 25, 40]:
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").write_bytes(b"torn")
    assert _C.rotate_checkpoints(str(tmp_path), 2) == {"checkpoint-10": ""}
    assert _C.list_checkpoints(str(tmp_path)) == [f"checkpoint-{step}" for step in [5, 20, 25, 30, 40]]


def test_replace_file(tmp_path):
    path = tmp_path / "config.json"
    for content in ["{}\n", "\u00e4" * 100]:
        _C.replace_file(str(path), content)
        assert path.read_text() == content
        assert names(tmp_path) == ["config.json"]


def test_failures_name_operation_and_path(tmp_path):
    missing = tmp_path / "missing"
    with pytest.raises(RuntimeError, match=r"cannot create .*missing/.*x.*No such file"):
        _C.replace_file(str(missing / "x"), "")
    with pytest.raises(RuntimeError, match=r"cannot create directory .*missing"):
        _C.AtomicDirectory(str(missing), "1")
    with pytest.raises(ValueError, match="expected a regular file, got a directory"):
        _C.SafetensorsReader(str(tmp_path))


def test_a_limit_of_file_sizes_is_no_full_disk(tmp_path):
    """The message names the path and the limit, and says nothing of bytes that are free."""
    import subprocess
    import sys

    program = (
        "import resource, signal, sys\n"
        "from fastsft import _C\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: _C.replace_file(sys.argv[1] + '/x', 'a' * 5000)\n"
        "except RuntimeError as error: print(error)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    assert "cannot write" in output and "`ulimit -f`" in output and str(tmp_path) in output
    assert "bytes are free" not in output
    assert names(tmp_path) == []
