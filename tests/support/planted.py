"""Directories as fastsft makes them, and what others put there, for the tests of what may not be touched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastsft import _C

HEX = "0123456789abcdef"  # of a random name


KINDS = ("a directory", "a FIFO", "a device")  # what is no regular file, as messages call it


def plant(path: Path, kind: str, victim: Path | None = None) -> Path:
    """Put something in the place of a file: one of KINDS, or a link to `victim` (hard, or dangling)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "a directory":
        path.mkdir()
    elif kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        assert victim is not None
        if kind == "hard link":
            os.link(victim, path)
        else:
            path.symlink_to(victim if kind == "link" else victim.with_name("missing"))
    return path


def state(folder: Path) -> dict[str, object]:
    """Every path below, with content and the times that a write would change."""
    found: dict[str, object] = {".": folder.stat().st_mtime_ns}
    for path in folder.rglob("*"):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path.relative_to(folder))] = (content, status.st_ino, status.st_mtime_ns)
    return found


def stage(parent: Path, files: dict[str, bytes], label: str = "1") -> tuple[Any, Any]:
    """An AtomicDirectory with these files, and the manifest to commit it with."""
    directory = _C.AtomicDirectory(str(parent), label)
    for name, content in files.items():
        path = Path(directory.path, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    digests = [_C.FileDigest(name, len(content), _C.crc32c(content)) for name, content in files.items()]
    return directory, _C.Manifest(1, 1, "", digests)


def checkpoint(parent: Path, step: int, files: dict[str, bytes] | None = None) -> Path:
    """One that verifies."""
    directory, manifest = stage(parent, files or {"model.safetensors": b"w", "config.json": b"{}"})
    return Path(directory.commit(f"checkpoint-{step}", manifest))


def reseal(path: Path) -> None:
    """Give a checkpoint whose files were changed a manifest that is valid for them."""
    manifest = _C.read_manifest(str(path))
    files = []
    for file in manifest.files:
        digest = _C.digest_file(str(path / file.name))
        files.append(_C.FileDigest(file.name, digest.size, digest.crc32c))
    text = _C.Manifest(manifest.step, manifest.world_size, manifest.layout_hash, files).json()
    (path / "manifest.json").write_text(text)
